// Vectors of texts: similarity, ranking, and the plane in which they differ most. Pure functions.

/** @param {number[]} vector @returns {Float64Array} of length one, or zero where all is zero */
export function normalised(vector) {
  const made = Float64Array.from(vector);
  const length = Math.sqrt(dot(made, made));
  return length > 0 ? made.map((value) => value / length) : made;
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

/** Cosines of every pair, [n][n]; the vectors have length one. */
export function similarities(vectors) {
  const rows = vectors.map(() => new Float64Array(vectors.length));
  for (let i = 0; i < vectors.length; i += 1) {
    for (let j = 0; j <= i; j += 1) rows[i][j] = rows[j][i] = dot(vectors[i], vectors[j]);
  }
  return rows;
}

/** Indices of `scores`, the highest first; equal scores keep their order. */
export function ranked(scores) {
  return scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a] || a - b);
}

/**
 * The two directions of greatest variance. With X the centred vectors [n, d], they come from the n by n matrix X Xᵀ,
 * which is small where texts are few and vectors long.
 * @param {Float64Array[]} vectors
 * @returns {{points: [number, number][], share: number, place: (vector: Float64Array) => [number, number]}}
 *   points of the texts, the share of the variance that the plane shows, and where another vector lies in it
 */
export function principalPlane(vectors) {
  const mean = new Float64Array(vectors[0].length);
  for (const vector of vectors) {
    vector.forEach((value, k) => {
      mean[k] += value / vectors.length;
    });
  }
  const centred = vectors.map((vector) => vector.map((value, k) => value - mean[k]));
  const gram = similarities(centred);
  const total = gram.reduce((sum, row, i) => sum + row[i], 0);
  const axes = [];
  let shown = 0;
  for (let k = 0; k < 2; k += 1) {
    const { value, vector } = leading(gram, k + 1);
    shown += value;
    axes.push(direction(centred, vector, value));
    for (let i = 0; i < gram.length; i += 1) {
      for (let j = 0; j < gram.length; j += 1) gram[i][j] -= value * vector[i] * vector[j];
    }
  }
  const place = (vector) => {
    const offset = vector.map((value, k) => value - mean[k]);
    return [dot(offset, axes[0]), dot(offset, axes[1])];
  };
  return { points: vectors.map(place), share: total > 0 ? shown / total : 1, place };
}

/** The direction in the space of the vectors that belongs to an eigenvector of X Xᵀ: Xᵀ u / sqrt(value). */
function direction(centred, u, value) {
  const axis = new Float64Array(centred[0].length);
  if (value <= 1e-12) return axis;
  centred.forEach((row, i) =>
    row.forEach((x, k) => {
      axis[k] += (u[i] * x) / Math.sqrt(value);
    })
  );
  return axis;
}

/** The largest eigenvalue of a symmetric matrix without negative ones, by power iteration from a fixed start. */
function leading(matrix, seed) {
  const n = matrix.length;
  let vector = normalised(Array.from({ length: n }, (_, i) => Math.sin((i + 1) * 12.9898 * seed) + 0.01));
  let value = 0;
  for (let round = 0; round < 300; round += 1) {
    const next = matrix.map((row) => dot(row, vector));
    const length = Math.sqrt(dot(next, next));
    if (length < 1e-12) return { value: 0, vector: new Float64Array(n) };
    vector = Float64Array.from(next, (x) => x / length);
    if (Math.abs(length - value) < 1e-10 * length) break;
    value = length;
  }
  return { value, vector };
}
