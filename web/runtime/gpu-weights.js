// gpu-weights: weights of a bundle on the device, file by file, in the rows that shaders read: padded, and of some types with
// the codes of all blocks first and their scales behind.

const CHUNK = 8 << 20; // bytes that are arranged at a time

// Rows `first` to `end` of a piece, as the device has them.
function arranged({ row, stride, codes }, source, first, end) {
  const out = new Uint8Array((end - first) * stride);
  for (let r = first; r < end; ++r) {
    const from = r * row, to = (r - first) * stride;
    if (!codes) {
      out.set(source.subarray(from, from + row), to);
      continue;
    }
    const [scale, wide, start, stop] = codes, size = stop - start, block = size + wide, count = row / block;
    for (let b = 0; b < count; ++b) {
      const at = from + b * block;
      out.set(source.subarray(at + start, at + stop), to + b * size);
      out.set(source.subarray(at + scale, at + scale + wide), to + count * size + wide * b);
    }
  }
  return out;
}

/** Writes the tensors that lie in the file `name`, of these bytes, into `made`, the buffers of `list`. */
export function uploadFile(queue, list, made, name, bytes) {
  list.buffers.forEach(({ pieces }, index) => {
    for (const piece of pieces) {
      const { tensor, at, first, rows, row, stride, codes } = piece;
      if (tensor.file !== name) continue;
      const source = bytes.subarray(tensor.offset, tensor.offset + tensor.bytes);
      if (row === stride && !codes && (rows * row) % 4 === 0) {
        queue.writeBuffer(made[index], at, source, first * row, rows * row);
        continue;
      }
      const each = Math.max(1, Math.floor(CHUNK / stride));
      for (let done = 0; done < rows; done += each) {
        const end = Math.min(rows, done + each);
        queue.writeBuffer(made[index], at + done * stride, arranged(piece, source, first + done, first + end));
      }
    }
  });
}
