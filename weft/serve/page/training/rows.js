// Rows to learn from, out of text: lines of JSON, or one list. Pure.

/** What a row of each form has. */
const FORMS = [["messages"], ["prompt", "completion"], ["text"], ["chosen", "rejected"]];

export class RowError extends Error {}

/**
 * @param {string} text
 * @returns {Record<string, any>[]}
 */
export function parseRows(text) {
  const trimmed = text.trim();
  if (!trimmed) return [];
  const rows = trimmed.startsWith("[") ? parsed(trimmed, "The text") : lines(trimmed);
  if (!Array.isArray(rows)) throw new RowError("The text must be a list of rows, or a row on each line.");
  rows.forEach((row, i) => {
    const isObject = typeof row === "object" && row !== null && !Array.isArray(row);
    if (!isObject) throw new RowError(`Row ${i + 1} must be an object.`);
    if (!FORMS.some((fields) => fields.every((field) => field in row))) {
      throw new RowError(`Row ${i + 1} needs messages, prompt and completion, text, or chosen and rejected.`);
    }
  });
  return rows;
}

function lines(text) {
  return text.split("\n").map((line, i) => [line.trim(), i + 1]).filter(([line]) => line)
    .map(([line, number]) => parsed(line, `Line ${number}`));
}

function parsed(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new RowError(`${where} is not JSON: ${error.message}`);
  }
}

/** Rows with a preferred answer are trained on in another way. */
export const kindOf = (rows) => (rows.length && "chosen" in rows[0] ? "dpo" : "lora");

/** What a row asks and what it wants for an answer; null where it has no question. */
export function questionOf(row) {
  if (Array.isArray(row.messages)) {
    const last = row.messages.findLastIndex((message) => message.role === "assistant");
    if (last < 1) return null;
    return { messages: row.messages.slice(0, last), wanted: String(row.messages[last].content ?? "") };
  }
  return null;
}
