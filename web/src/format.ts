/** Numbers, sizes and times as text; `size`, `duration`, `span` and `left` in the notation of core/units. */

const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** Bytes as `14.0G`, `512M`, `3K`; `?` if unknown. */
export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "?";
  if (bytes >= 1024 * GIB) return `${(bytes / GIB / 1024).toFixed(1)}T`;
  if (bytes >= GIB) return `${(bytes / GIB).toFixed(1)}G`;
  if (bytes >= MIB) return `${Math.round(bytes / MIB)}M`;
  return bytes >= 1024 ? `${Math.round(bytes / 1024)}K` : String(Math.round(bytes));
}

/** `12.1/14.0G`: an amount and its limit in the unit of the limit. */
export function sizeOf(bytes: number, limit: number): string {
  const unit = limit >= GIB ? GIB : MIB;
  const shown = (value: number): string => (value / unit).toFixed(unit === GIB ? 1 : 0);
  return `${shown(bytes)}/${shown(limit)}${unit === GIB ? "G" : "M"}`;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** Seconds as `00:09`, `1:12:03`, `2d 03:00:00`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  const rest = whole % 60;
  if (days) return `${days}d ${two(hours)}:${two(minutes)}:${two(rest)}`;
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${two(minutes)}:${two(rest)}`;
}

/** Seconds in the largest unit, and the next one for days: `9s`, `12m`, `3h`, `2d 4h`. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m`;
  const hours = Math.floor(whole / 3600);
  return hours < 24 ? `${hours}h` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** Time left: `8s`, `3m`, `2h10`, `3d4h`. */
export function left(seconds: number): string {
  if (seconds < 3600) return span(seconds);
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours}h${two(minutes % 60)}` : `${Math.floor(hours / 24)}d${hours % 24}h`;
}

/** `3m ago`, `just now`. */
export function ago(at: number, now: number): string {
  const seconds = (now - at) / 1000;
  return seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

function sameDay(one: Date, other: Date): boolean {
  return one.toDateString() === other.toDateString();
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A time as `14:32` today, `18 Nov 14:32` otherwise. */
export function clock(at: number, now: number, seconds = false): string {
  const when = new Date(at);
  const time = `${two(when.getHours())}:${two(when.getMinutes())}${seconds ? `:${two(when.getSeconds())}` : ""}`;
  return sameDay(when, new Date(now)) ? time : `${when.getDate()} ${MONTHS[when.getMonth()]} ${time}`;
}

/** `17 Nov`. */
export function day(at: number): string {
  const when = new Date(at);
  return `${when.getDate()} ${MONTHS[when.getMonth()]}`;
}

/** A part from 0 to 1 as `63%`; a job that runs never shows 100. */
export function percent(part: number): string {
  return `${Math.floor(Math.min(1, Math.max(0, part)) * 100)}%`;
}

/** GPU-hours with the digits that matter: `0.04`, `3.2`, `128`. */
export function hours(value: number): string {
  if (value === 0) return "0";
  if (value < 0.1) return value < 0.005 ? "<0.01" : value.toFixed(2);
  return value < 100 ? value.toFixed(1) : value.toFixed(0);
}

/** A metric of a job: up to five digits, no false zeros. */
export function number(value: number): string {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

/** The text of a value, and a dash for one that is not known. */
export function known(text: (value: number) => string, value: number | null): string {
  return value === null ? "–" : text(value);
}

/** `1 job`, `3 jobs`. */
export function count(value: number, noun: string, plural = `${noun}s`): string {
  return `${value.toLocaleString("en")} ${value === 1 ? noun : plural}`;
}

/** Milliseconds since 1970 of a time of the API. */
export function moment(text: string): number {
  return Date.parse(text);
}
