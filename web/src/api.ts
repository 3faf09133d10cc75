/** Calls of the server's API. */

import type {
  Action,
  ActionName,
  ChangeReport,
  CodeDiff,
  GpuSamples,
  HistoryPage,
  JobDetails,
  JobsPage,
  LogSearch,
  LogText,
  Matching,
  SelectedJobs,
  Series,
  Session,
  Status,
  SweepList,
  SweepPage,
  TasksLine,
  Timeline,
  Usage,
} from "./types";

const BASE = "api/v1";
const PATIENCE_MS = 15_000;
/** An action on a hundred thousand jobs takes a while. */
const ACTION_PATIENCE_MS = 180_000;

/** An answer of the server that is not the data: what happened, and what to do. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }
}

/** No answer: the server stopped, or the tunnel is closed. */
export class Unreachable extends Error {}

type Query = Record<string, string | number | undefined>;

export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}/${path}${text ? `?${text}` : ""}`;
}

/** Characters that turn text around, so that a name could read as another: shown as the terminal shows them. */
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** The value of a JSON text, in which characters that turn text around are escaped once more. */
export function parsed<T>(text: string): T {
  const escaped = (character: string): string => `\\\\u${character.charCodeAt(0).toString(16)}`;
  return JSON.parse(text.replace(TURNING, escaped)) as T;
}

export async function call<T>(path: string, query: Query = {}, init: RequestInit = {}, parse = parsed<T>): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address(path, query), { signal: AbortSignal.timeout(PATIENCE_MS), ...init });
  } catch {
    throw new Unreachable("no answer from the server");
  }
  if (!response.ok) throw await refusal(response);
  return parse(await response.text());
}

async function refusal(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as { error: { message: string; hint?: string } };
    return new ApiError(response.status, error.message, error.hint);
  } catch {
    return new ApiError(response.status, `the server answered ${response.status}`);
  }
}

export const getSession = (): Promise<Session> => call("session");
export const getStatus = (): Promise<Status> => call("status");
export const getJobs = (query: Query): Promise<JobsPage> => call("jobs", query);
export const getSeries = (label: string): Promise<Series> => call(`jobs/${encodeURIComponent(label)}/series`);
export const getCodeDiff = (label: string): Promise<CodeDiff> => call(`jobs/${encodeURIComponent(label)}/code`);
export const getSamples = (hours: number): Promise<GpuSamples> => call("gpus/samples", { hours });
export const getTimeline = (query: Query): Promise<Timeline> => call("timeline", query);
export const getHistory = (query: Query): Promise<HistoryPage> => call("history", query);
export const getUsage = (query: Query): Promise<Usage> => call("usage", query);

export const getSweeps = (): Promise<SweepList> => call("sweeps");
export const getSweep = (id: string, page: number): Promise<SweepPage> =>
  call(`sweeps/${encodeURIComponent(id)}`, { page });

export async function getJob(label: string): Promise<JobDetails> {
  const { jobs } = await call<SelectedJobs>(`jobs/${encodeURIComponent(label)}`);
  const job = jobs[0];
  if (!job) throw new ApiError(404, `there is no job ${label}`);
  return job;
}

export function getLog(
  label: string,
  query: { attempt: number; stream: string; offset: number; limit: number },
): Promise<LogText> {
  return call(`jobs/${encodeURIComponent(label)}/log`, query, {}, JSON.parse); // its bytes are counted
}

export function searchLog(
  label: string,
  query: { attempt: number; stream: string; text: string; before: number | undefined },
): Promise<LogSearch> {
  return call(`jobs/${encodeURIComponent(label)}/log/search`, query);
}

export function downloadAddress(label: string, attempt: number, stream: string): string {
  return address(`jobs/${encodeURIComponent(label)}/log/download`, { attempt, stream });
}

export function postAction(
  action: ActionName,
  jobs: (string | TasksLine)[] | Matching,
  value: number | null = null,
): Promise<ChangeReport> {
  const asked: Action = { action, value, ...(Array.isArray(jobs) ? { jobs } : { matching: jobs }) };
  const body = JSON.stringify(asked);
  const signal = AbortSignal.timeout(ACTION_PATIENCE_MS);
  return call("actions", {}, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
}
