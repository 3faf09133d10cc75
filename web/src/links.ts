/** Addresses in log text, and what they are. */

export interface Link {
  href: string;
  label: string;
}

export interface Piece {
  text: string;
  href?: string;
}

const ADDRESS = /\bhttps?:\/\/[^\s<>"'`|\\^{}\x00-\x1f\x7f-\x9f]+/g;
const KINDS: [RegExp, string][] = [
  [/^https?:\/\/(?:[\w-]+\.)*wandb\.ai\/[^/]+\/[^/]+\/runs\//, "Weights & Biases run"],
  [/^https?:\/\/(?:[\w-]+\.)*wandb\.ai\//, "Weights & Biases"],
  [/^https?:\/\/(?:[\w-]+\.)*(?:comet\.com|comet\.ml)\//, "Comet"],
  [/^https?:\/\/(?:[\w-]+\.)*neptune\.ai\//, "Neptune"],
  [/^https?:\/\/(?:[\w-]+\.)*huggingface\.co\//, "Hugging Face"],
  [/\/(?:#\/)?experiments\/\d+/, "MLflow"],
];

/** An address without the punctuation of the sentence around it; undefined if nothing is left. */
export function trimmed(address: string): string | undefined {
  let text = address.replace(/[.,;:!?*_~]+$/, "");
  const count = (character: string): number => text.split(character).length - 1;
  while ((text.endsWith(")") && count(")") > count("(")) || (text.endsWith("]") && count("]") > count("["))) {
    text = text.slice(0, -1).replace(/[.,;:!?]+$/, "");
  }
  return URL.canParse(text) && new URL(text).hostname ? text : undefined;
}

/** A text in pieces, those with addresses marked. Only http and https count: a log may contain `javascript:`. */
export function pieces(text: string): Piece[] {
  if (!text.includes("://")) return [{ text }];
  const found: Piece[] = [];
  let position = 0;
  for (const match of text.matchAll(ADDRESS)) {
    const href = trimmed(match[0]);
    if (!href) continue;
    if (match.index > position) found.push({ text: text.slice(position, match.index) });
    found.push({ text: href, href });
    position = match.index + href.length;
  }
  if (position < text.length || found.length === 0) found.push({ text: text.slice(position) });
  return found;
}

/** What the address leads to; the line tells it where the address does not. */
export function kind(href: string, line: string): string | undefined {
  const known = KINDS.find(([pattern]) => pattern.test(href));
  if (known) return known[1];
  if (/tensorboard/i.test(line)) return "TensorBoard";
  if (/jupyter/i.test(line)) return "Jupyter";
  if (/mlflow/i.test(line)) return "MLflow";
  return undefined;
}

const MOST = 6;

/** The pages of experiment trackers in these lines, each once, the best of each kind last seen first. */
export function trackers(lines: string[]): Link[] {
  const found = new Map<string, Link>();
  for (const line of lines) {
    if (!line.includes("://")) continue;
    for (const { href } of pieces(line)) {
      const label = href && kind(href, line);
      if (href && label) found.set(href, { href, label });
    }
  }
  return [...found.values()].reverse().slice(0, MOST);
}
