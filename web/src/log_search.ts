/** A search in all of a log: the server finds what the page has not loaded. */

import { size } from "./format";
import type { LogSearch } from "./types";

const MOST_REQUESTS = 16;
const MOST_HITS = 1000;

export interface Hits {
  text: string;
  /** First bytes of the lines that match, in the order of the file. */
  offsets: number[];
  /** Bytes at the end of the log that were searched. */
  searched: number;
  /** Whether the log may have more before them. */
  more: boolean;
}

export type Search = (text: string, before: number | undefined) => Promise<LogSearch>;

/** Search from the end of the log on, until its start or until enough is found. */
export async function searchAll(text: string, search: Search, isOld: () => boolean): Promise<Hits | null> {
  const offsets: number[] = [];
  let before: number | undefined;
  let searched = 0;
  for (let request = 0; request < MOST_REQUESTS; request++) {
    const found = await search(text, before);
    if (isOld()) return null;
    offsets.push(...found.offsets);
    before = found.start;
    searched = found.size - before;
    if (before === 0 || offsets.length >= MOST_HITS) break;
  }
  return { text, offsets: offsets.reverse(), searched, more: before !== 0 };
}

/** Where the matches are: in lines that the page has, before them, or after them. */
export interface Places {
  /** Offsets of lines before those that the page has. */
  earlier: number[];
  /** Numbers of lines that it has. */
  here: number[];
  /** Offsets of lines after them. */
  later: number[];
}

export function placesOf(hits: Hits | null, text: string, here: number[], from: number, next: number): Places {
  const known = hits?.text === text ? hits.offsets : [];
  return {
    earlier: known.filter((offset) => offset < from),
    here,
    later: known.filter((offset) => offset >= next),
  };
}

/** The next match: a line that is here, or an offset to go to; null if there is none. */
export function stepped({ earlier, here, later }: Places, match: number, step: number): Step | null {
  const next = match + step;
  if (next >= 0 && next < here.length) return { match: next };
  // Beyond what is here; at the end of the log, again from its start.
  const offset = next < 0 ? (earlier.at(-1) ?? later.at(-1)) : (later[0] ?? earlier[0]);
  if (offset !== undefined) return { offset };
  return here.length ? { match: (next + here.length) % here.length } : null;
}

export type Step = { match: number } | { offset: number };

/** `3/17`, `none`, `17+` where not all was searched, and `…` while the search goes on. */
export function placeText({ earlier, here, later }: Places, match: number, hits: Hits | null, busy: boolean): string {
  const total = earlier.length + here.length + later.length;
  const more = busy ? " …" : hits?.more ? "+" : "";
  if (!total) return busy ? "…" : hits?.more ? `none in the last ${size(hits.searched)}` : "none";
  return here.length ? `${earlier.length + match + 1}/${total}${more}` : `–/${total}${more}`;
}
