/** The part of a log that the page has: its end, what came since, and earlier lines that the user asked for. */

import { type Line, LogReader } from "./log";
import type { LogPart } from "./types";

const FIRST_BYTES = 64 * 1024;
const MORE_BYTES = 256 * 1024;
const MOST_LINES = 8000;

export type GetPart = (offset: number, limit: number) => Promise<LogPart>;

export class LogTail {
  lines: Line[] = [];
  /** The first byte that is here. */
  from = 0;
  /** Bytes of the file. */
  size = 0;
  streams: string[] = [];
  private reader: LogReader | null = null;
  private before: Line[] = [];
  private next = 0;
  private ended = false;

  constructor(private readonly get: GetPart) {}

  /** Whether all of it is here and no more can come. */
  get isComplete(): boolean {
    return this.ended && this.next >= this.size;
  }

  /** Whether the server has more at this moment. */
  get isBehind(): boolean {
    return this.next < this.size;
  }

  /**
   * Read what came since the last time; tells whether anything did.
   *
   * With `follow` only the end matters: what would make the page slow is forgotten.
   */
  async read(follow: boolean): Promise<boolean> {
    if (this.reader === null || (follow && this.lines.length > MOST_LINES)) {
      this.begin(await this.get(-FIRST_BYTES, FIRST_BYTES));
      return true;
    }
    const part = await this.get(this.next, MORE_BYTES);
    if (part.offset < this.next) {
      this.begin(part); // the program wrote the file anew
      return true;
    }
    this.reader.feed(part.text);
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

  private begin(part: LogPart): void {
    const { text, from } = wholeLines(part);
    this.reader = new LogReader();
    this.reader.feed(text);
    this.before = [];
    this.from = from;
    this.take(part);
  }

  private take(part: LogPart): void {
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
export function wholeLines(part: LogPart): { text: string; from: number } {
  const end = part.offset === 0 ? -1 : part.text.indexOf("\n");
  if (end < 0) return { text: part.text, from: part.offset };
  const text = part.text.slice(end + 1);
  // Counted from the end: the first character may be a part of one, which has another length.
  return { text, from: part.next - new TextEncoder().encode(text).length };
}
