/** The JSON of the API: the values of `stoker ... --json`, described in docs/schema. */

export type JobState =
  | "queued"
  | "held"
  | "blocked"
  | "scheduled"
  | "starting"
  | "running"
  | "stopping"
  | "done"
  | "failed"
  | "oom"
  | "timeout"
  | "cancelled"
  | "stopped"
  | "skipped"
  | "lost";

export type VramMode = "none" | "all" | "auto" | "size";

export interface Mark {
  note: string;
  since: string | null;
}

export interface Engine {
  running: boolean;
  pid: number | null;
  version: string;
  since: string | null;
  seen: string | null;
  trouble: string;
  draining: boolean;
  paused: Mark | null;
  silence: string;
}

export interface ForeignProcess {
  pid: number;
  owner: string;
  command: string;
  memory_bytes: number | null;
  graphics: boolean;
}

export interface Lease {
  owner: string;
  pid: number;
  what: string;
  memory_bytes: number | null;
  since: string;
  yours: boolean;
}

export interface OtherJob {
  label: string;
  name: string;
  pid: number;
  memory_bytes: number | null;
}

export interface Device {
  id: string;
  label: string;
  model: string;
  kind: string;
  memory_bytes: number | null;
  used_bytes: number | null;
  ours_bytes: number;
  reserved_bytes: number;
  others_bytes: number;
  utilisation_percent: number | null;
  temperature_celsius: number | null;
  power_watts: number | null;
  problem: string;
  drained: Mark | null;
  jobs: string[];
  leases: Lease[];
  strangers: ForeignProcess[];
  combined_speed: number | null;
  elsewhere: OtherJob[];
}

export interface Job {
  id: number;
  label: string;
  tasks: number;
  name: string;
  command: string;
  state: JobState;
  group: string;
  priority: number;
  gpus: number;
  devices: string[];
  vram_bytes: number | null;
  used_bytes: number | null;
  submitted: string;
  started: string | null;
  seconds: number | null;
  limit_seconds: number | null;
  expected_start: string | null;
  expected_end: string | null;
  why: string;
  run: string;
  hook: boolean;
  vram_mode: VramMode;
  reserved_bytes: number | null;
  held_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
  speed: number | null;
  last_seen: string | null;
  title: string;
  progress: number | null;
  interrupted: boolean;
  place: number | null;
  expected_seconds: number | null;
  ended: string | null;
}

export interface Counts {
  active: number;
  waiting: number;
  held: number;
}

export interface FailedJob {
  id: number;
  label: string;
  title: string;
  state: JobState;
  how: string;
  ended: string;
  why: string;
}

export interface InterruptedRun {
  label: string;
  jobs: number;
  submitted: string;
  resume: string;
}

export interface Status {
  at: string;
  host: string;
  version: string;
  simulated: boolean;
  engine: Engine;
  devices: Device[];
  jobs: Job[];
  counts: Counts;
  hidden: Counts;
  today: Record<string, number>;
  expected_empty: string | null;
  notes: string[];
  interrupted: InterruptedRun[];
  failures: FailedJob[];
}

export interface JobsPage {
  jobs: Job[];
  page: number;
  pages: number;
  total: number;
  counts: Record<string, number>;
}

export interface Attempt {
  number: number;
  devices: string[];
  assigned: string;
  started: string | null;
  ended: string | null;
  seconds: number | null;
  exit_code: number | null;
  signal: number | null;
  why: string;
  peak_memory_bytes: number | null;
  note: string;
  log: string | null;
  errors: string | null;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
}

export interface JobEvent {
  at: string;
  event: string;
  detail: string;
}

export interface JobDetails extends Job {
  directory: string;
  shell: string;
  tags: Record<string, string>;
  after: string[];
  begin: string | null;
  retries: number;
  commit: string;
  exit_code: number | null;
  signal: number | null;
  note: string;
  attempts: Attempt[];
  events: JobEvent[];
  variables: Record<string, string>;
  environment: Record<string, string> | null;
  advice: string;
  failure: string;
  order: string[];
}

export interface SelectedJobs {
  at: string;
  jobs: JobDetails[];
}

export interface LogPart {
  text: string;
  offset: number;
  next: number;
  size: number;
  stream: string;
  /** `out`, and `err` if errors have a file of their own. */
  streams: string[];
  ended: boolean;
}

/** What changed since the last look. Fields from `engine` on are as they are now, changed or not. */
export interface Changes {
  at: string;
  jobs: Job[];
  gone: string[];
  devices: Device[];
  /** Labels of all jobs with new events, also of those that the status does not list. */
  changed: string[];
  /** Whether further jobs changed, which are not named. */
  more: boolean;
  engine: Engine;
  counts: Counts;
  hidden: Counts;
  today: Record<string, number>;
  expected_empty: string | null;
  notes: string[];
  failures: FailedJob[];
}

export type ActionName = "cancel" | "retry" | "hold" | "release" | "priority";

/** Tasks of an array that share a line; the state tells which of them are meant if the label is shortened. */
export interface TasksLine {
  label: string;
  state: string;
}

/** All jobs of a list, as many as the user saw. */
export interface Matching {
  count: number;
  state: string;
  group: string;
  search: string;
  array: string;
}

export interface LogSearch {
  offsets: number[];
  start: number;
  size: number;
}

export interface ActionResult {
  shown: string;
  name: string;
  before: string;
  after: string;
  refused: boolean;
  said: string;
}

export interface Session {
  readonly: boolean;
  host: string;
  user: string;
  version: string;
  simulated: boolean;
}

/** A value for each step of a period; null where nothing is known. */
export interface Curves {
  utilisation_percent: (number | null)[];
  used_bytes: (number | null)[];
  reserved_bytes: (number | null)[];
  temperature_celsius: (number | null)[];
  power_watts: (number | null)[];
}

export interface Samples {
  at: string;
  start: string;
  step_seconds: number;
  devices: { id: string; label: string; model: string; memory_bytes: number | null; curves: Curves }[];
}

/** An attempt on one GPU; `bottom` and `height` are parts of the GPU's memory. */
export interface Bar {
  job: number;
  label: string;
  title: string;
  group: string;
  attempt: number;
  state: JobState;
  start: string;
  end: string | null;
  expected_end: string | null;
  reserved_bytes: number | null;
  used_bytes: number | null;
  bottom: number;
  height: number;
}

export interface Lane {
  id: string;
  label: string;
  model: string;
  memory_bytes: number | null;
  bars: Bar[];
  forecast: Bar[];
  samples: Curves;
}

export interface Timeline {
  at: string;
  engine_running: boolean;
  since: string;
  until: string;
  expected_empty: string | null;
  samples_start: string;
  samples_step_seconds: number;
  lanes: Lane[];
  left_out: number;
  without_gpu: number;
  /** Numbers of the colours of groups; of titles, if no bar has a group. */
  colours: Record<string, number>;
}

export interface JobUsage {
  id: number;
  label: string;
  title: string;
  group: string;
  state: JobState;
  gpus: number;
  ended: string;
  wait_seconds: number | null;
  run_seconds: number | null;
  gpu_hours: number;
  vram_mode: VramMode;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  note: string;
}

export interface GroupUsage {
  group: string;
  gpu_hours: number;
  outcomes: Record<string, number>;
  median_wait_seconds: number | null;
  median_run_seconds: number | null;
}

export interface UserLine {
  user: string;
  you: boolean;
  running: number;
  gpus: number;
  vram_bytes: number | null;
  waiting: number | null;
  waiting_gpus: number | null;
  waiting_since: string | null;
  recent_gpu_hours: number | null;
}

export interface Usage {
  at: string;
  user: string;
  since: string | null;
  gpu_hours: number;
  busy_gpu_hours: number;
  saved_gpu_hours: number;
  outcomes: Record<string, number>;
  days: { day: string; group: string; gpu_hours: number }[];
  groups: GroupUsage[];
  jobs: JobUsage[];
  hidden: number;
  users: UserLine[];
  /** Numbers of the colours of groups. */
  colours: Record<string, number>;
}

export interface PastJob {
  id: number;
  label: string;
  name: string;
  title: string;
  state: JobState;
  exit_code: number | null;
  signal: number | null;
  note: string;
  group: string;
  gpus: number;
  devices: string[];
  submitted: string;
  started: string | null;
  ended: string;
  wait_seconds: number | null;
  run_seconds: number | null;
  gpu_hours: number;
  attempts: number;
  command: string;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
  tasks: number;
}

export interface History {
  jobs: PastJob[];
  page: number;
  pages: number;
  total: number;
}

/** Curves of one job. Times in seconds since 1970. */
export interface Series {
  at: string;
  limit_bytes: number | null;
  attempts: { attempt: number; reserved_bytes: number | null; memory: [number, number][] }[];
  progress: [number, number][];
  metrics: Record<string, [number, number][]>;
  /** Whether the first number of a metric's points is a step, and not a time. */
  steps: boolean;
}

/** A value of a parameter. */
export type Scalar = string | number | boolean | null;

/** `interrupted`: the job that chooses its trials failed or was cancelled. */
export type SweepState = "queued" | "running" | "done" | "stopped" | "interrupted";

export interface SweepLine {
  id: number;
  name: string;
  state: SweepState;
  method: string;
  total: number;
  counts: Record<string, number>;
  created: string;
  objective: string;
  best: number | null;
  params: Record<string, Scalar>;
}

export interface Trial {
  number: number;
  job: number;
  state: JobState;
  params: Record<string, Scalar>;
  values: Record<string, number | null>;
  step: number | null;
  started: string | null;
  ended: string | null;
  seconds: number | null;
  gpu_hours: number;
  message: string;
}

export interface BestPoint {
  trials: number[];
  jobs: number[];
  params: Record<string, Scalar>;
  values: Record<string, number>;
}

export interface Sweep {
  at: string;
  id: number;
  name: string;
  state: SweepState;
  method: string;
  space: string[];
  command: string;
  objectives: { name: string; goal: string; source: string }[];
  pruners: string[];
  created: string;
  total: number;
  counts: Record<string, number>;
  best: BestPoint[];
  importance: Record<string, number>;
  importance_method: string;
  gpu_hours: number;
  gpu_hours_saved: number;
  gpu_hours_full_trial: number | null;
  adviser: number | null;
  adviser_state: string;
  adviser_message: string;
  notices: string[];
  trials: Trial[];
}

export interface SweepAxis {
  name: string;
  log: boolean;
  /** Texts that stand for 0, 1, 2 ...; empty for numbers. */
  names: string[];
}

export interface SweepPoint {
  trial: Trial;
  /** How many trials had ended when it ended. */
  place: number;
  /** Where it is on each axis. */
  line: (number | null)[];
  /** From 0 (the worst) to 1 (the best). */
  goodness: number;
}

export interface SweepCurve {
  trial: number;
  job: number;
  state: JobState;
  points: [number, number][];
}

/** A sweep with a page of its table and the data of its charts. */
export interface SweepPage {
  sweep: Sweep;
  page: number;
  pages: number;
  total: number;
  axes: SweepAxis[];
  points: SweepPoint[];
  points_left_out: number;
  steps: [number, number][];
  curves: SweepCurve[];
  curves_left_out: number;
}
