/** What the page knows of the server: the status, the connection, and what changes. */

import { batch, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { ApiError, address, getSession, getStatus, parsed } from "./api";
import { mergeStatus } from "./changes";
import { moment } from "./format";
import type { Changes, Session, Status } from "./types";

/** `refused`: the server does not know this browser's cookie. */
export type Connection = "connecting" | "live" | "lost" | "refused";

export const status = signal<Status | null>(null);
export const session = signal<Session | null>(null);
export const connection = signal<Connection>("connecting");
const latest = signal<Changes | null>(null);
/** Why the server cannot read the queue. */
export const trouble = signal("");
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

/** Read the status for the first picture, then listen. At each `hello` of the server everything is read again. */
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
  stream.addEventListener("hello", () => void welcome());
  stream.addEventListener("changes", (event) => take(parsed<Changes>((event as MessageEvent<string>).data)));
  stream.addEventListener("trouble", (event) => complain((event as MessageEvent<string>).data));
  stream.addEventListener("error", () => {
    if (source === stream) lose(null);
  });
}

async function welcome(): Promise<void> {
  heard = Date.now();
  attempts = 0;
  await refresh();
  batch(() => {
    trouble.value = "";
    connection.value = "live";
    generation.value++;
  });
}

function complain(data: string): void {
  heard = Date.now();
  const { error } = JSON.parse(data) as { error: { message: string; hint: string } };
  batch(() => {
    trouble.value = error.hint ? `${error.message}; ${error.hint}` : error.message;
    connection.value = "live";
  });
}

function take(changes: Changes): void {
  heard = Date.now();
  batch(() => {
    setClock(changes.at);
    if (status.value) status.value = mergeStatus(status.value, changes);
    latest.value = changes;
  });
}

/** Calls a view at each change from now on. */
export function useChanges(handle: (changes: Changes) => void): void {
  const current = useRef(handle);
  current.current = handle;
  useEffect(() => {
    const known = latest.peek();
    return latest.subscribe((changes) => {
      if (changes && changes !== known) current.current(changes);
    });
  }, []);
}

/** Read the status again. */
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
