import { expect, test } from "vitest";

import { nameOf, prioritiesOf, summary } from "../src/parts/confirm";
import type { ChangeResult } from "../src/types";

function result(before: string, after: string, said: string, refused = false): ChangeResult {
  return { id: 7, shown: "7", name: "", before, after, refused, said };
}

test("a job that had finished by itself was not cancelled", () => {
  const late = result("done", "done", "already finished: 7 (done)");
  expect(summary("cancel", [late])).toEqual({ text: "already finished: 7 (done)", bad: false });
  expect(summary("cancel", [result("running", "stopping", ""), late, late]).text).toBe(
    "1 job cancelled; 2 jobs had already finished",
  );
  expect(summary("preempt", [result("running", "running", ""), result("queued", "queued", "not running: 7")]).text).toBe(
    "1 job asked to give way; not running: 7",
  );
  expect(summary("retry", [result("failed", "queued", "")]).text).toBe("1 job queued again");
  expect(summary("cancel", []).text).toContain("nothing was done");
  expect(summary("hold", [result("running", "running", "runs", true)]).bad).toBe(true);
});

test("different priorities are told, and none of them is proposed", () => {
  const target = (priority: number): { label: string; title: string; state: string; priority: number } => ({
    label: "1",
    title: "",
    state: "held",
    priority,
  });
  expect(prioritiesOf([target(7), target(7)])).toBe("7");
  expect(prioritiesOf([target(7), target(0), target(3)])).toBe("0 to 7");
});

test("a line of several tasks is sent with its state", () => {
  const line = { label: "12.[0,3,…]", title: "", state: "held", tasks: 40 };
  expect(nameOf(line)).toEqual({ label: "12.[0,3,…]", state: "held" });
  expect(nameOf({ ...line, label: "12.3", tasks: 1 })).toBe("12.3");
});
