import { describe, expect, test } from "vitest";

import { kind, pieces, trackers, trimmed } from "../src/links";

test.each([
  ["https://a.org/x.", "https://a.org/x"],
  ["https://a.org/x),", "https://a.org/x"],
  ["https://a.org/wiki/X_(y)", "https://a.org/wiki/X_(y)"],
  ["https://a.org/x]", "https://a.org/x"],
  ["http://", undefined],
])("%s is the address %s", (text, address) => expect(trimmed(text)).toBe(address));

test("a text is split at its addresses", () => {
  expect(pieces("see https://a.org/b?c=1#d, then go")).toEqual([
    { text: "see " },
    { text: "https://a.org/b?c=1#d", href: "https://a.org/b?c=1#d" },
    { text: ", then go" },
  ]);
});

test.each([
  "javascript:alert(1)",
  "JAVASCRIPT://x/%0aalert(1)",
  "data:text/html,<b>",
  "file:///etc/passwd",
  "ftp://a.org",
])("%s is no link", (text) => {
  expect(pieces(text)).toEqual([{ text }]);
});

describe("experiment trackers", () => {
  test("are recognised", () => {
    expect(kind("https://wandb.ai/team/project/runs/abc", "")).toBe("Weights & Biases run");
    expect(kind("http://localhost:6006/", "TensorBoard 2.20 at http://localhost:6006/ (Press CTRL+C to quit)")).toBe(
      "TensorBoard",
    );
    expect(kind("https://example.org/docs", "see https://example.org/docs")).toBeUndefined();
    expect(kind("https://wandb.ai.evil.org/a/b/runs/c", "")).toBeUndefined();
  });
  test("are listed once, the newest first", () => {
    const lines = [
      "wandb: View run at https://wandb.ai/t/p/runs/1",
      "again https://wandb.ai/t/p/runs/1",
      "other https://a.org",
      "wandb: https://wandb.ai/t/p/runs/2",
    ];
    expect(trackers(lines).map((link) => link.href)).toEqual([
      "https://wandb.ai/t/p/runs/2",
      "https://wandb.ai/t/p/runs/1",
    ]);
  });
});
