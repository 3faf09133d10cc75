import { describe, expect, test } from "vitest";

import { placeText, placesOf, searchAll, stepped } from "../src/log_search";
import type { LogSearch } from "../src/types";

const HITS = { text: "x", offsets: [5, 40, 70, 200], searched: 400, more: false };

describe("a search in a log", () => {
  test("goes on until the start of the file", async () => {
    const part = { schema: "", start: 0, size: 1000 };
    const parts: LogSearch[] = [
      { ...part, offsets: [900, 800], start: 500 },
      { ...part, offsets: [100] },
    ];
    const asked: (number | undefined)[] = [];
    const search = (_: string, before: number | undefined): Promise<LogSearch> => {
      asked.push(before);
      return Promise.resolve(parts[asked.length - 1] ?? { ...part, offsets: [] });
    };
    expect(await searchAll("x", search, () => false)).toEqual({
      text: "x",
      offsets: [100, 800, 900],
      searched: 1000,
      more: false,
    });
    expect(asked).toEqual([undefined, 500]);
    expect(await searchAll("x", search, () => true)).toBeNull();
  });

  test("counts what is before and after the lines that the page has", () => {
    const places = placesOf(HITS, "x", [3, 9], 30, 100);
    expect(places).toEqual({ earlier: [5], here: [3, 9], later: [200] });
    expect(placeText(places, 1, HITS, false)).toBe("3/4");
    expect(placesOf(HITS, "another text", [], 30, 100).earlier).toEqual([]);
    expect(placeText(placesOf(HITS, "x", [], 300, 400), 0, HITS, false)).toBe("–/4");
    expect(placeText({ earlier: [], here: [], later: [] }, 0, null, true)).toBe("…");
    expect(placeText({ earlier: [], here: [], later: [] }, 0, { ...HITS, searched: 2 ** 30, more: true }, false)).toBe(
      "none in the last 1.0G",
    );
  });

  test("steps to the next match, wherever it is, and round again", () => {
    const places = placesOf(HITS, "x", [3, 9], 30, 100);
    expect(stepped(places, 0, 1)).toEqual({ match: 1 });
    expect(stepped(places, 1, 1)).toEqual({ offset: 200 });
    expect(stepped(places, 0, -1)).toEqual({ offset: 5 });
    expect(stepped({ earlier: [], here: [3, 9], later: [] }, 1, 1)).toEqual({ match: 0 });
    expect(stepped({ earlier: [5], here: [], later: [] }, 0, -1)).toEqual({ offset: 5 });
    expect(stepped({ earlier: [], here: [], later: [] }, 0, 1)).toBeNull();
  });
});
