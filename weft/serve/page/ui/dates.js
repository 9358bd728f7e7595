// Times as people read them, in their own time zone.

const DAY_MS = 86_400_000;

const dayOf = (time) => new Date(new Date(time).toDateString()).getTime();

/** The group of a list that a time belongs to: Today, Yesterday, This week, or a month. */
export function groupOf(time, now = Date.now()) {
  const days = Math.round((dayOf(now) - dayOf(time)) / DAY_MS);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Previous 7 days";
  return new Date(time).toLocaleDateString("en-GB", { month: "long", year: "numeric" });
}

/** A time of today as its hour, and any other as its day. */
export function shortTime(time, now = Date.now()) {
  const date = new Date(time);
  if (dayOf(time) === dayOf(now)) return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const year = date.getFullYear() === new Date(now).getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year });
}

export const longTime = (time) => new Date(time).toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" });
