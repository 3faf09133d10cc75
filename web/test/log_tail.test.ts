import { describe, expect, test } from "vitest";

import { plain } from "../src/log";
import { LogTail } from "../src/log_tail";
import type { LogText } from "../src/types";

/** A log file behind the API. */
class FakeLog {
  bytes = new Uint8Array();
  ended = false;
  requests = 0;

  write(text: string): void {
    this.bytes = Uint8Array.from([...this.bytes, ...new TextEncoder().encode(text)]);
  }

  readonly get = (asked: number, limit: number): Promise<LogText> => {
    this.requests++;
    const size = this.bytes.length;
    const offset = asked < 0 ? Math.max(0, size + asked) : asked > size ? 0 : asked;
    const part = this.bytes.slice(offset, offset + limit);
    const text = new TextDecoder().decode(part);
    return Promise.resolve({
      schema: "",
      attempt: 1,
      attempts: 1,
      text,
      offset,
      next: offset + part.length,
      size,
      stream: "out",
      streams: ["out"],
      ended: this.ended,
    });
  };
}

function opened(text = ""): { log: FakeLog; tail: LogTail; shown: () => string[] } {
  const log = new FakeLog();
  log.write(text);
  const tail = new LogTail(log.get);
  return { log, tail, shown: () => tail.lines.map(plain) };
}

describe("a log", () => {
  test("is followed while it grows, until its end", async () => {
    const { log, tail, shown } = opened("one\ntw");
    expect(await tail.read(true)).toBe(true);
    expect(shown()).toEqual(["one", "tw"]);
    expect(await tail.read(true)).toBe(false);
    log.write("o\nthree\n");
    log.ended = true;
    expect(tail.isComplete).toBe(false);
    expect(await tail.read(true)).toBe(true);
    expect(shown()).toEqual(["one", "two", "three"]);
    expect(tail.isComplete).toBe(true);
  });

  test("that is long begins at its end, with a whole line", async () => {
    const { tail, shown } = opened(Array.from({ length: 20_000 }, (_, index) => `█ ${index}\n`).join(""));
    await tail.read(true);
    expect(shown().at(-1)).toBe("█ 19999");
    const first = Number(shown()[0]?.slice(2));
    expect(tail.lines.length).toBe(20_000 - first);
    await tail.readEarlier();
    expect(tail.from).toBe(0);
    expect(shown()).toEqual(Array.from({ length: 20_000 }, (_, index) => `█ ${index}`));
  });

  test("keeps earlier lines only as long as nobody follows its end", async () => {
    const { log, tail } = opened("line\n".repeat(30_000));
    await tail.read(false);
    await tail.readEarlier();
    log.write("last\n");
    await tail.read(false);
    expect(tail.lines.length).toBe(30_001);
    await tail.read(true);
    expect(tail.lines.length).toBeLessThan(20_000);
    expect(tail.from).toBeGreaterThan(0);
  });

  test("that was written anew is read from its start", async () => {
    const { log, tail, shown } = opened("old text that is long\n");
    await tail.read(true);
    log.bytes = new Uint8Array();
    log.write("new\n");
    await tail.read(true);
    expect(shown()).toEqual(["new"]);
  });

  test("is read at an earlier place, then on from there, and followed again", async () => {
    const { log, tail, shown } = opened(Array.from({ length: 60_000 }, (_, index) => `line ${index}\n`).join(""));
    await tail.read(true);
    await tail.goTo(0);
    expect([shown()[0], tail.from, tail.away, tail.isBehind]).toEqual(["line 0", 0, true, false]);
    const requests = log.requests;
    expect(await tail.read(false)).toBe(false);
    expect(log.requests).toBe(requests);
    const known = shown().length;
    await tail.readLater();
    expect(shown()[known - 1]).toBe(`line ${known - 1}`);
    expect(shown().length).toBeGreaterThan(known);
    await tail.read(true);
    expect([shown().at(-1), tail.away]).toEqual(["line 59999", false]);
  });
});
