/** The part of a log that the page has: its end and what came since, or a place that the user went to. */

import { type Line, LogReader } from "./log";
import type { LogText } from "./types";

const FIRST_BYTES = 64 * 1024;
const MORE_BYTES = 256 * 1024;
const BEFORE_BYTES = 32 * 1024;
const MOST_LINES = 8000;

export type GetPart = (offset: number, limit: number) => Promise<LogText>;

export class LogTail {
  lines: Line[] = [];
  /** The first byte that is here. */
  from = 0;
  /** Bytes of the file. */
  size = 0;
  streams: string[] = [];
  private reader: LogReader | null = null;
  private before: Line[] = [];
  /** The byte after the last one that is here. */
  next = 0;
  /** Whether the user went to an earlier place, so that the end is not here. */
  away = false;
  private ended = false;

  constructor(private readonly get: GetPart) {}

  /** Whether all of it is here and no more can come. */
  get isComplete(): boolean {
    return this.ended && !this.away && this.next >= this.size;
  }

  /** Whether the server has more at this moment. */
  get isBehind(): boolean {
    return !this.away && this.next < this.size;
  }

  /**
   * Read what came since the last time; tells whether anything did.
   *
   * With `follow` only the end matters: what would make the page slow is forgotten.
   */
  async read(follow: boolean): Promise<boolean> {
    if (this.reader === null || (follow && (this.away || this.lines.length > MOST_LINES))) {
      this.begin(await this.get(-FIRST_BYTES, FIRST_BYTES));
      return true;
    }
    return this.away ? false : this.readOn();
  }

  /** Go to a place of the file, with some lines before it; only `readLater` or following it again reads on. */
  async goTo(offset: number): Promise<void> {
    this.begin(await this.get(Math.max(0, offset - BEFORE_BYTES), MORE_BYTES));
    this.away = this.next < this.size;
  }

  /** Read the lines after the last one, if the user went to an earlier place. */
  async readLater(): Promise<void> {
    await this.readOn();
    this.away = this.next < this.size;
  }

  private async readOn(): Promise<boolean> {
    const part = await this.get(this.next, MORE_BYTES);
    if (part.offset < this.next) {
      this.begin(part); // the program wrote the file anew
      return true;
    }
    this.reader?.feed(part.text);
    this.take(part);
    return part.text !== "";
  }

  /** Read the lines before the first one. */
  async readEarlier(): Promise<void> {
    const start = Math.max(0, this.from - MORE_BYTES);
    const part = await this.get(start, this.from - start);
    const { text, from } = wholeLines(part);
    const reader = new LogReader();
    reader.feed(text);
    this.before = [...reader.lines, ...this.before];
    this.from = from;
    this.arrange();
  }

  private begin(part: LogText): void {
    const { text, from } = wholeLines(part);
    this.reader = new LogReader();
    this.reader.feed(text);
    this.before = [];
    this.from = from;
    this.away = false;
    this.take(part);
  }

  private take(part: LogText): void {
    this.next = part.next;
    this.size = part.size;
    this.ended = part.ended;
    this.streams = part.streams;
    this.arrange();
  }

  private arrange(): void {
    this.lines = this.before.length ? [...this.before, ...(this.reader?.lines ?? [])] : [...(this.reader?.lines ?? [])];
  }
}

/** The whole lines of a part: one from a place inside a file begins in the middle of a line, which is left out. */
export function wholeLines(part: LogText): { text: string; from: number } {
  const end = part.offset === 0 ? -1 : part.text.indexOf("\n");
  if (end < 0) return { text: part.text, from: part.offset };
  const text = part.text.slice(end + 1);
  // Counted from the end: the first character may be a part of one, which has another length.
  return { text, from: part.next - new TextEncoder().encode(text).length };
}
