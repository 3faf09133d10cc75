import { describe, expect, test } from "vitest";

import { ago, clock, count, duration, hours, left, number, percent, size, sizeOf, span } from "../src/format";
import samples from "../../tests/data/units.json";

const GIB = 2 ** 30;

/** The samples of core/units, too. */
describe.each(Object.entries({ size, duration, span, left }))("%s", (name, text) => {
  test.each(samples[name as keyof typeof samples] as [number, string][])("of %s is %s", (value, shown) =>
    expect(text(value)).toBe(shown),
  );
});

test("an amount is shown in the unit of its limit", () => {
  expect(sizeOf(12.1 * GIB, 14 * GIB)).toBe("12.1/14.0G");
  expect(sizeOf(100 * 2 ** 20, 500 * 2 ** 20)).toBe("100/500M");
});

describe("times", () => {
  const now = new Date(2026, 10, 17, 14, 32, 5).getTime();
  test("of today have no date", () => expect(clock(now - 60_000, now)).toBe("14:31"));
  test("of another day have one", () => expect(clock(now - 86_400_000, now, true)).toBe("16 Nov 14:32:05"));
  test("of the past are told by their distance", () => {
    expect(ago(now - 2000, now)).toBe("just now");
    expect(ago(now - 180_000, now)).toBe("3m ago");
  });
});

test("a job that runs never shows more than its part", () => {
  expect(percent(0.999)).toBe("99%");
  expect(percent(1.4)).toBe("100%");
  expect(percent(-1)).toBe("0%");
});

test.each([
  [0, "0"],
  [0.001, "<0.01"],
  [0.04, "0.04"],
  [3.21, "3.2"],
  [128.4, "128"],
])("%s GPU-hours are shown as %s", (value, text) => expect(hours(value)).toBe(text));

test.each([
  [3, "3"],
  [0.123456, "0.12346"],
  [1e-9, "1.00e-9"],
  [123456789.5, "1.23e+8"],
  [0, "0"],
])("the metric %s is shown as %s", (value, text) => expect(number(value)).toBe(text));

test("nouns follow their number", () => {
  expect(count(1, "job")).toBe("1 job");
  expect(count(12345, "job")).toBe("12,345 jobs");
});
