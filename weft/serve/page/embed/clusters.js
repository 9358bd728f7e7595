// Groups of texts that are alike: average linkage on their cosines, cut where the groups are most distinct. Pure
// functions; the same texts always give the same groups.

const MOST = 8; // colours that can be told apart
const DISTINCT = 0.08; // the mean silhouette below which there are no groups

/**
 * @param {Float64Array[]} matrix  cosines [n][n]
 * @returns {number[]}  the group of each text, counted from 0 in the order in which they first appear; all 0 where the
 *   texts have no groups
 */
export function clusters(matrix) {
  const n = matrix.length;
  const none = Array(n).fill(0);
  if (n < 4) return none;
  let best = { score: DISTINCT, groups: none };
  for (const groups of partitions(matrix, Math.min(MOST, n - 1))) {
    const score = silhouette(matrix, groups);
    if (score > best.score) best = { score, groups };
  }
  return renumbered(best.groups);
}

/** The partitions into 2 … `most` groups, each made by joining the two groups that are most alike on average. */
function partitions(matrix, most) {
  const n = matrix.length;
  const alike = matrix.map((row) => Float64Array.from(row));
  const size = Array(n).fill(1);
  const group = [...Array(n).keys()];
  const alive = new Set(group);
  const made = [];
  while (alive.size > 1) {
    if (alive.size <= most) made.push([...group]);
    const [a, b] = nearest(alike, alive);
    for (const c of alive) {
      if (c === a || c === b) continue;
      alike[a][c] = alike[c][a] = (size[a] * alike[a][c] + size[b] * alike[b][c]) / (size[a] + size[b]);
    }
    size[a] += size[b];
    alive.delete(b);
    group.forEach((own, i) => {
      if (own === b) group[i] = a;
    });
  }
  return made;
}

function nearest(alike, alive) {
  const all = [...alive];
  let best = [all[0], all[1]];
  let most = -Infinity;
  for (let i = 0; i < all.length; i += 1) {
    const row = alike[all[i]];
    for (let j = i + 1; j < all.length; j += 1) {
      if (row[all[j]] > most) {
        most = row[all[j]];
        best = [all[i], all[j]];
      }
    }
  }
  return best;
}

/** How much nearer texts are to their own group than to the next one, from -1 to 1. */
export function silhouette(matrix, groups) {
  const names = [...new Set(groups)];
  const counts = new Map(names.map((name) => [name, groups.filter((group) => group === name).length]));
  let sum = 0;
  matrix.forEach((row, i) => {
    if (counts.get(groups[i]) === 1) return; // alone: counts as 0
    const distance = new Map(names.map((name) => [name, 0]));
    row.forEach((value, j) => j !== i && distance.set(groups[j], distance.get(groups[j]) + 1 - value));
    const own = distance.get(groups[i]) / (counts.get(groups[i]) - 1);
    const other = Math.min(...names.filter((name) => name !== groups[i]).map((name) => distance.get(name) / counts.get(name)));
    const larger = Math.max(own, other);
    if (larger > 0) sum += (other - own) / larger;
  });
  return sum / groups.length;
}

function renumbered(groups) {
  const numbers = new Map();
  for (const group of groups) if (!numbers.has(group)) numbers.set(group, numbers.size);
  return groups.map((group) => numbers.get(group));
}

/** The text of each group that is most like the others of its group: an example of what the group is about. */
export function examples(matrix, groups) {
  return [...new Set(groups)].map((name) => {
    const members = groups.flatMap((group, i) => (group === name ? [i] : []));
    const score = (i) => members.reduce((sum, j) => sum + matrix[i][j], 0);
    return { group: name, count: members.length, text: members.reduce((a, b) => (score(b) > score(a) ? b : a)) };
  });
}
