/** The address of a view: `#/jobs?state=running`. It is kept in the fragment, so the server has one page. */

import { signal } from "@preact/signals";

export interface Route {
  /** `overview`, `timeline`, `jobs`, `job`, `history`, `sweeps`. */
  view: string;
  /** The label of a job, or the id of a sweep. */
  argument: string;
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", argument = ""] = path.split("/", 2);
  return { view: view || "overview", argument: decoded(argument), query: new URLSearchParams(query) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function hashOf(view: string, argument = "", query: Record<string, string> = {}): string {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const path = argument ? `${view}/${encodeURIComponent(argument)}` : view;
  return `#/${path}${given.size ? `?${given}` : ""}`;
}

/** The page of a list that a query asks for, the first if it names none. */
export function pageOf(query: URLSearchParams): number {
  const page = Number(query.get("page") ?? 1);
  return Number.isInteger(page) && page > 0 ? page : 1;
}

/** The tasks of an array, by the label of one or of several of them. */
export const arrayHash = (label: string): string =>
  hashOf("jobs", "", { array: label.split(".")[0] ?? "", state: "all" });

export const jobHash = (label: string): string => hashOf("job", label);

export const route = signal<Route>(parseRoute(typeof location === "undefined" ? "" : location.hash));

/** Whether this page was on another view before. */
let visited = false;

export function watchRoute(): void {
  addEventListener("hashchange", () => {
    const before = route.value;
    visited = true;
    route.value = parseRoute(location.hash);
    if (before.view !== route.value.view || before.argument !== route.value.argument) scrollTo(0, 0);
  });
}

/** The view before this one; without one, the fallback. */
export function back(fallback: string): void {
  if (visited) history.back();
  else go(fallback);
}

export function go(hash: string): void {
  location.hash = hash;
}

/** Change the query of this view; with `isStep` the browser's Back returns to the one before. */
export function adjust(query: Record<string, string>, isStep = false): void {
  const { view, argument } = route.value;
  if (isStep) visited = true;
  history[isStep ? "pushState" : "replaceState"](null, "", hashOf(view, argument, query));
  route.value = parseRoute(location.hash);
}
