import { expect, test } from "vitest";

import { direction, queryOf, readFilter, sortedBy, writeFilter } from "../src/filters";
import { hashOf, parseRoute } from "../src/router";
import { FAILURES } from "../src/types";

test("a filter survives the way through the address", () => {
  const filter = { state: "failed", group: "a&b=c", array: "12", search: "lr=1e-3 <b>", sort: "-seconds", page: 3 };
  const hash = hashOf("jobs", "", writeFilter(filter));
  expect(readFilter(parseRoute(hash).query)).toEqual(filter);
});

test("an address without a filter means open jobs", () => {
  expect(readFilter(new URLSearchParams("page=-2"))).toEqual({
    state: "",
    group: "",
    array: "",
    search: "",
    sort: "",
    page: 1,
  });
  expect(hashOf("jobs", "", writeFilter(readFilter(new URLSearchParams())))).toBe("#/jobs");
});

test("a chip stands for several states", () => {
  expect(queryOf(readFilter(new URLSearchParams("state=failed")))["state"]).toBe(FAILURES.join());
  expect(FAILURES).toContain("oom");
  expect(queryOf(readFilter(new URLSearchParams("state=oom")))["state"]).toBe("oom");
});

test("a click on a column sorts up, down, and not at all", () => {
  const plain = readFilter(new URLSearchParams("page=4"));
  const up = sortedBy(plain, "name");
  const down = sortedBy(up, "name");
  expect([up.sort, down.sort, sortedBy(down, "name").sort, up.page]).toEqual(["name", "-name", "", 1]);
  expect([direction(up, "name"), direction(down, "name"), direction(up, "id")]).toEqual([
    "ascending",
    "descending",
    "none",
  ]);
});

test("the label of a job may contain anything", () => {
  expect(parseRoute(hashOf("job", "12.[3-99]")).argument).toBe("12.[3-99]");
  expect(parseRoute("#/job/%E0%A4%A").argument).toBe("%E0%A4%A");
  expect(parseRoute("").view).toBe("overview");
});
