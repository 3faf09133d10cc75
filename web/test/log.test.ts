import { describe, expect, test } from "vitest";

import { LogReader, collapsed, marked, parseLine, plain } from "../src/log";

const shown = (...parts: string[]): string[] => {
  const reader = new LogReader();
  for (const part of parts) reader.feed(part);
  return reader.lines.map(plain);
};

describe("carriage returns", () => {
  test("leave the last state of a progress bar", () => expect(collapsed("10%\r50%\r100%")).toBe("100%"));
  test("at the end of a line remove nothing", () => expect(collapsed("50%\r")).toBe("50%"));
  test("of Windows lines are removed", () => expect(shown("a\r\nb\r\n")).toEqual(["a", "b"]));
  test("work across parts", () => expect(shown("epoch 1\n 10%\r", " 20%", "\r 30%")).toEqual(["epoch 1", " 30%"]));
});

describe("lines", () => {
  test("may end in a later part", () => expect(shown("hel", "lo\nwor", "ld")).toEqual(["hello", "world"]));
  test("of an empty log do not exist", () => expect(shown("")).toEqual([]));
  test("that are empty are kept", () => expect(shown("a\n\nb\n")).toEqual(["a", "", "b"]));
});

describe("colours", () => {
  test("become styles", () => {
    const [spans] = parseLine("\x1b[1;31mred\x1b[0m plain \x1b[92mgreen");
    expect(spans).toEqual([
      { text: "red", style: { bold: true, colour: "var(--ansi-1)" } },
      { text: " plain ", style: {} },
      { text: "green", style: { colour: "var(--ansi-10)" } },
    ]);
  });
  test("of 256 and of 16 million are understood", () => {
    const [spans] = parseLine("\x1b[38;5;196ma\x1b[48;2;1;2;3mb\x1b[38;5;3mc\x1b[38;5;244md");
    expect(spans.map((span) => span.style.colour)).toEqual(["#ff0000", "#ff0000", "var(--ansi-3)", "#808080"]);
    expect(spans[1]?.style.background).toBe("#010203");
  });
  test("last until they are reset, also across lines and parts", () => {
    const reader = new LogReader();
    reader.feed("\x1b[33mwarn\nstill");
    reader.feed(" warn\x1b[39m no\n");
    expect(reader.lines[1]).toEqual([
      { text: "still warn", style: { colour: "var(--ansi-3)" } },
      { text: " no", style: {} },
    ]);
  });
  test("that are not finished yet are not shown", () => expect(shown("a\x1b[3", "1mb")).toEqual(["ab"]));
});

describe("other sequences", () => {
  test.each([
    ["\x1b[2K\x1b[1Aup", "up"],
    ["\x1b]0;title\x07text", "text"],
    ["\x1b]8;;https://a.b\x1b\\link\x1b]8;;\x1b\\", "link"],
    ["bell\x07 null\x00", "bell null"],
    ["\x1b(Bset", "set"],
    ["tab\tstays", "tab\tstays"],
    ["\x9b31mc1", "31mc1"],
  ])("are removed from %j", (line, text) => expect(plain(parseLine(line)[0])).toBe(text));
  test("do not make HTML of text", () =>
    expect(shown("<script>alert(1)</script>\n")).toEqual(["<script>alert(1)</script>"]));
  // A pattern that backtracks would exceed the time limit of the test.
  test("that never end do not stop the page", () => expect(shown("\x1b[".repeat(50_000))).toHaveLength(1));
});

describe("a search", () => {
  test("marks matches across spans and in any case", () => {
    const [line] = parseLine("a \x1b[31mLos\x1b[0ms b loss");
    const found = marked(line, "loss");
    expect(found.filter((span) => span.match).map((span) => span.text)).toEqual(["Los", "s", "loss"]);
    expect(plain(found)).toBe("a Loss b loss");
  });
  test("without a match changes nothing", () => {
    const [line] = parseLine("abc");
    expect(marked(line, "x")).toBe(line);
    expect(marked(line, "")).toBe(line);
  });
});
