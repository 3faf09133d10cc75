/** What the page knows of the server: the status, the connection, and what changes. */

import { batch, signal } from "@preact/signals";

import { ApiError, address, getSession, getStatus } from "./api";
import { mergeStatus } from "./changes";
import { moment } from "./format";
import type { Changes, Session, Status } from "./types";

/** `refused`: the server does not know this browser's cookie. */
export type Connection = "connecting" | "live" | "lost" | "refused";

export const status = signal<Status | null>(null);
export const session = signal<Session | null>(null);
export const connection = signal<Connection>("connecting");
/** The newest changes; views merge them into what they show. */
export const latest = signal<Changes>({});
/** Counts the times at which everything must be read again: after a connection was lost. */
export const generation = signal(0);
/** The time of the server in milliseconds; it advances every second. */
export const now = signal(Date.now());

const QUIET_MS = 30_000;
const LONGEST_WAIT_MS = 10_000;
let clockOffset = 0;
let source: EventSource | null = null;
let attempts = 0;
let retry: ReturnType<typeof setTimeout> | undefined;
let heard = 0;

function setClock(at: string): void {
  clockOffset = moment(at) - Date.now();
  now.value = Date.now() + clockOffset;
}

export function start(): void {
  setInterval(() => {
    if (!document.hidden) now.value = Date.now() + clockOffset;
  }, 1000);
  setInterval(checkSilence, 5_000);
  addEventListener("online", () => reconnect(0));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && connection.value === "lost") reconnect(0);
  });
  void connect();
}

/** Read everything, then listen to changes. Changes that come meanwhile are merged into newer data, which does no harm. */
async function connect(): Promise<void> {
  retry = undefined;
  try {
    const [here, fresh] = await Promise.all([getSession(), getStatus()]);
    batch(() => {
      session.value = here;
      status.value = fresh;
      setClock(fresh.at);
    });
  } catch (error) {
    lose(error);
    return;
  }
  listen();
}

function listen(): void {
  source?.close();
  const stream = new EventSource(address("events"));
  source = stream;
  heard = Date.now();
  stream.addEventListener("open", () => {
    heard = Date.now();
    attempts = 0;
    batch(() => {
      if (connection.value !== "connecting") generation.value++;
      connection.value = "live";
    });
  });
  stream.addEventListener("changes", (event) => take(JSON.parse((event as MessageEvent<string>).data) as Changes));
  stream.addEventListener("engine", () => void refresh());
  stream.addEventListener("error", () => {
    if (source === stream) lose(null);
  });
}

function take(changes: Changes): void {
  heard = Date.now();
  batch(() => {
    if (changes.at) setClock(changes.at);
    if (status.value) status.value = mergeStatus(status.value, changes);
    latest.value = changes;
  });
}

/** Read the status again: after the engine started or stopped, and after an action. */
export async function refresh(): Promise<void> {
  try {
    const fresh = await getStatus();
    heard = Date.now();
    batch(() => {
      status.value = fresh;
      setClock(fresh.at);
    });
  } catch (error) {
    lose(error);
  }
}

/** A tunnel that hangs reports no error: after a silence, ask. */
function checkSilence(): void {
  if (connection.value === "live" && Date.now() - heard > QUIET_MS) void refresh();
}

function lose(error: unknown): void {
  source?.close();
  source = null;
  const refused = error instanceof ApiError && error.status === 401;
  connection.value = refused ? "refused" : "lost";
  if (!refused) reconnect(Math.min(LONGEST_WAIT_MS, 500 * 2 ** attempts++));
}

function reconnect(delay: number): void {
  if (connection.value !== "lost") return;
  clearTimeout(retry);
  retry = setTimeout(() => void connect(), delay);
}
