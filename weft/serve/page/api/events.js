// Server-sent events out of a byte stream.

/**
 * The data and the id of each event. Lines may end in LF, CR LF or CR, and a chunk may end anywhere, also inside a
 * character.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<{data: string, id: string}>}
 */
export async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  let id = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "" && data.length) {
          yield { data: data.join("\n"), id };
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("id:")) id = line.slice(3).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
