/** What the table of jobs shows: the filter in the address of the view, and the query for the server. */

import { pageOf } from "./router";
import { ACTIVE, FAILURES, WAITING } from "./types";

export interface Filter {
  state: string;
  group: string;
  /** The id of an array whose tasks are shown. */
  array: string;
  search: string;
  sort: string;
  page: number;
}

/** The chips above the table, and the states that the server is asked for. */
export const STATES: { state: string; label: string; words: string }[] = [
  { state: "", label: "Open", words: "" },
  { state: "running", label: "Running", words: ACTIVE.join() },
  { state: "waiting", label: "Waiting", words: WAITING.join() },
  { state: "held", label: "Held", words: "held" },
  { state: "failed", label: "Failed", words: FAILURES.join() },
  { state: "done", label: "Done", words: "done" },
  { state: "all", label: "All", words: "all" },
];

/** The query of `/jobs`. A state that has no chip is asked for as it is. */
export function queryOf(filter: Filter): Record<string, string | number> {
  const words = STATES.find(({ state }) => state === filter.state)?.words ?? filter.state;
  return { ...filter, state: words, tasks: filter.array ? "each" : "" };
}

export function readFilter(query: URLSearchParams): Filter {
  return {
    state: query.get("state") ?? "",
    group: query.get("group") ?? "",
    array: query.get("array") ?? "",
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? "",
    page: pageOf(query),
  };
}

/** The filter for an address; what is usual is left out. */
export function writeFilter(filter: Filter): Record<string, string> {
  const { page, ...rest } = filter;
  return { ...rest, page: page > 1 ? String(page) : "" };
}

/** The filter after a click on a column: first upwards, then downwards, then the usual order. */
export function sortedBy(filter: Filter, column: string): Filter {
  const next = filter.sort === column ? `-${column}` : filter.sort === `-${column}` ? "" : column;
  return { ...filter, sort: next, page: 1 };
}

export function direction(filter: Filter, column: string): "ascending" | "descending" | "none" {
  if (filter.sort === column) return "ascending";
  return filter.sort === `-${column}` ? "descending" : "none";
}
