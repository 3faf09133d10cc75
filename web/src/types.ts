/** Generated from the code by `make schema`; the structs there tell what the fields mean. */

export type JobState = "blocked" | "cancelled" | "done" | "expired" | "failed" | "held" | "hung" | "idle" | "lost" | "oom" | "queued" | "running" | "scheduled" | "skipped" | "starting" | "stopped" | "stopping" | "timeout";

export type Tone = "active" | "bad" | "faint" | "good" | "held" | "waiting";

export type VramMode = "all" | "auto" | "none" | "size";

export type ActionName = "cancel" | "hold" | "preempt" | "priority" | "release" | "retry";

export type Scalar = boolean | number | string | null;

export type Point = [number, number];

export const WAITING: readonly JobState[] = ["queued", "blocked", "scheduled"];

export const ACTIVE: readonly JobState[] = ["starting", "running", "stopping"];

export const RESULTS: readonly JobState[] = ["done", "failed", "oom", "timeout", "hung", "cancelled", "stopped", "expired", "idle", "skipped", "lost"];

export const FAILURES: readonly JobState[] = ["failed", "oom", "timeout", "hung", "lost", "idle"];

export const TONES: Record<JobState, Tone> = {"queued": "waiting", "blocked": "waiting", "scheduled": "waiting", "held": "held", "starting": "active", "running": "active", "stopping": "active", "done": "good", "failed": "bad", "oom": "bad", "timeout": "bad", "hung": "bad", "cancelled": "faint", "stopped": "faint", "expired": "faint", "idle": "bad", "skipped": "faint", "lost": "bad"};

/** An action on jobs: `POST /api/v1/actions`. */
export interface Action {
  action: ActionName;
  jobs?: (string | TasksLine)[];
  value?: number | null;
  matching?: Matching | null;
}

/** One run of a job. */
export interface AttemptLine {
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
  vram_curve: Point[];
}

/** GPU memory of one attempt. */
export interface AttemptMemory {
  attempt: number;
  reserved_bytes: number | null;
  memory: Point[];
}

/** An attempt on one GPU. */
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

/** One of the best points. */
export interface BestView {
  trials: number[];
  jobs: number[];
  params: Record<string, Scalar>;
  values: Record<string, number>;
}

/** A time for which a user has booked the device. */
export interface BookedTime {
  user: string;
  yours: boolean;
  begin: string;
  end: string;
  why: string;
}

/** All that a verb did: `stoker cancel --json` and others. */
export interface ChangeReport {
  schema: string;
  verb: string;
  dry_run: boolean;
  jobs: ChangeResult[];
  notes: string[];
}

/** The effect of a command on one job. */
export interface ChangeResult {
  id: number;
  shown: string;
  name: string;
  before: string;
  after: string;
  refused: boolean;
  said: string;
}

/** Changes since the last look. */
export interface Changes {
  schema: string;
  at: string;
  jobs: JobLine[];
  gone: string[];
  devices: DeviceLine[];
  changed: string[];
  more: boolean;
  engine: EngineLine;
  counts: Counts;
  hidden: Counts;
  today: Record<string, number>;
  expected_empty: string | null;
  notes: string[];
  failures: FailedJob[];
}

/** How the code of a job differs from that of another job, or from the present one: `stoker diff --json`. */
export interface CodeDiff {
  schema: string;
  at: string;
  simulated: boolean;
  job: string;
  other: string | null;
  root: string;
  commit: string;
  other_commit: string;
  files: FileDiff[];
}

/** A line of a unified diff. */
export interface CodeLine {
  kind: string;
  text: string;
}

/** The code that a job runs. */
export interface CodeState {
  frozen: boolean;
  reason: string;
  changed: string[] | null;
}

/** How many jobs are where. */
export interface Counts {
  active: number;
  waiting: number;
  held: number;
}

/** Measurements of a GPU: a value for each step of the period, null where nothing is known. */
export interface Curves {
  utilisation_percent: (number | null)[];
  used_bytes: (number | null)[];
  reserved_bytes: (number | null)[];
  temperature_celsius: (number | null)[];
  power_watts: (number | null)[];
}

/** Usage of the jobs of a group on one day. */
export interface DayUsage {
  day: string;
  group: string;
  gpu_hours: number;
}

/** One device, and who has what of it. */
export interface DeviceLine {
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
  leases: LeaseLine[];
  strangers: ForeignProcess[];
  combined_speed: number | null;
  elsewhere: OtherJob[];
  bookings: BookedTime[];
}

/** The curves of one GPU. */
export interface DeviceSamples {
  id: string;
  label: string;
  model: string;
  memory_bytes: number | null;
  curves: Curves;
}

/** The engine in the background. */
export interface EngineLine {
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

/** Something that happened to a job. */
export interface EventLine {
  at: string;
  event: string;
  detail: string;
}

/** A job that failed lately. */
export interface FailedJob {
  id: number;
  label: string;
  title: string;
  state: JobState;
  how: string;
  ended: string;
  why: string;
}

/** A file that differs. */
export interface FileDiff {
  path: string;
  kind: string;
  old_path: string;
  lines: CodeLine[];
  lines_left_out: boolean;
}

/** A process on a device that is none of our jobs. */
export interface ForeignProcess {
  pid: number;
  owner: string;
  command: string;
  memory_bytes: number | null;
  graphics: boolean;
}

/** The curves of all GPUs, which have the same steps. */
export interface GpuSamples {
  schema: string;
  at: string;
  simulated: boolean;
  start: string;
  step_seconds: number;
  devices: DeviceSamples[];
}

/** The open jobs of one group. */
export interface GroupLine {
  group: string;
  active: number;
  waiting: number;
  held: number;
  gpus: number;
  limit: number | null;
}

/** Usage of the jobs of a group in the period. */
export interface GroupUsage {
  group: string;
  gpu_hours: number;
  outcomes: Record<string, number>;
  median_wait_seconds: number | null;
  median_run_seconds: number | null;
}

/** A part of the jobs that are over: `/api/v1/history`. */
export interface HistoryPage {
  schema: string;
  at: string;
  jobs: PastLine[];
  page: number;
  pages: number;
  total: number;
  counts: Record<string, number>;
  gpu_hours: number;
}

/** A foreground run that ended before all its jobs had started. */
export interface InterruptedRun {
  label: string;
  jobs: number;
  submitted: string;
  resume: string;
  discard: string;
}

/** A job with all that is known of it. */
export interface JobDetails {
  id: number;
  label: string;
  tasks: number;
  name: string;
  command: string;
  state: JobState;
  group: string;
  gpus: number;
  devices: string[];
  vram_bytes: number | null;
  submitted: string;
  started: string | null;
  ended: string | null;
  vram_mode: VramMode;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
  title: string;
  priority: number;
  used_bytes: number | null;
  seconds: number | null;
  limit_seconds: number | null;
  expected_start: string | null;
  expected_end: string | null;
  why: string;
  run: string;
  hook: boolean;
  held_bytes: number | null;
  speed: number | null;
  last_seen: string | null;
  progress: number | null;
  interrupted: boolean;
  place: number | null;
  expected_seconds: number | null;
  waited_ratio: number | null;
  preemptible: "" | "restart" | "save";
  directory: string;
  shell: string;
  tags: Record<string, string>;
  allowed: string[];
  preferred: string[];
  gpu_type: string;
  after: string[];
  begin: string | null;
  grace_seconds: number;
  retries: number;
  retry_on: string[];
  requeue: boolean;
  at_once: number | null;
  commit: string;
  exit_code: number | null;
  signal: number | null;
  note: string;
  attempts: AttemptLine[];
  events: EventLine[];
  variables: Record<string, string>;
  environment: Record<string, string> | null;
  early_signal: string;
  notify: string[];
  notified: string;
  advice: string;
  failure: string;
  order: string[];
  reported: Latest | null;
  member: MemberDetails | null;
  options: Record<string, boolean | number | string | Record<string, string>>;
  code: CodeState | null;
  output: string[];
  preemptions: number;
}

/** A job, or several tasks of an array that wait alike. */
export interface JobLine {
  id: number;
  label: string;
  tasks: number;
  name: string;
  command: string;
  state: JobState;
  group: string;
  gpus: number;
  devices: string[];
  vram_bytes: number | null;
  submitted: string;
  started: string | null;
  ended: string | null;
  vram_mode: VramMode;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
  title: string;
  priority: number;
  used_bytes: number | null;
  seconds: number | null;
  limit_seconds: number | null;
  expected_start: string | null;
  expected_end: string | null;
  why: string;
  run: string;
  hook: boolean;
  held_bytes: number | null;
  speed: number | null;
  last_seen: string | null;
  progress: number | null;
  interrupted: boolean;
  place: number | null;
  expected_seconds: number | null;
  waited_ratio: number | null;
  preemptible: "" | "restart" | "save";
}

/** One ended job, for charts of times and memory. */
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

/** A part of the jobs: `/api/v1/jobs`. */
export interface JobsPage {
  schema: string;
  at: string;
  jobs: JobLine[];
  page: number;
  pages: number;
  total: number;
  counts: Record<string, number>;
}

/** GPUs that are kept free for a user. */
export interface LabBooking {
  user: string;
  gpus: string[];
  begin: string;
  end: string;
  why: string;
}

/** A GPU as each user of the machine can see it, by the driver and by processes. */
export interface LabGpu {
  label: string;
  model: string;
  memory_bytes: number | null;
  used_bytes: number | null;
  utilisation_percent: number | null;
  drained: boolean;
  strangers: string[];
}

/** A running job of any user that has GPUs, or a lease whose engine tells no more. */
export interface LabJob {
  user: string;
  you: boolean;
  gpus: string[];
  memory_bytes: number | null;
  since: string;
  expected_end: string | null;
  latest_end: string | null;
  utilisation_percent: number | null;
  job: string;
  pid: number;
  title: string;
}

/** A sentence of root or a coordinator to all users. */
export interface LabMessage {
  user: string;
  at: string;
  text: string;
}

/** The machine as all of its users may see it: `/api/v1/lab`. */
export interface LabPage {
  schema: string;
  at: string;
  host: string;
  simulated: boolean;
  messages: LabMessage[];
  gpus: LabGpu[];
  users: LabUser[];
  jobs: LabJob[];
  waiting: LabWaiting[];
  weeks: LabWeeks[];
  bookings: LabBooking[];
}

/** One user in total. */
export interface LabUser {
  user: string;
  you: boolean;
  running: number;
  gpus: number;
  waiting: number;
}

/** Waiting jobs of one user that want the same. */
export interface LabWaiting {
  user: string;
  you: boolean;
  jobs: number;
  gpus: number | null;
  memory_bytes: number | null;
  since: string | null;
}

/** The usage of a user in the last weeks, of which the first one ends today. */
export interface LabWeeks {
  user: string;
  gpu_hours: number[];
  waiting_hours: number;
  idle_gpu_hours: number | null;
}

/** One GPU. */
export interface Lane {
  id: string;
  label: string;
  model: string;
  memory_bytes: number | null;
  bars: Bar[];
  forecast: Bar[];
  samples: Curves;
  bookings: BookedTime[];
}

/** The newest word on each matter. */
export interface Latest {
  values: Record<string, unknown>;
  done: number | null;
  total: number | null;
}

/** The claim of another user, or of another queue, on a device. */
export interface LeaseLine {
  owner: string;
  pid: number;
  what: string;
  memory_bytes: number | null;
  since: string;
  yours: boolean;
  job: string;
  until: string | null;
  expected_end: string | null;
}

/** The lines of a log that contain a text: `/api/v1/jobs/ID/log/search`. */
export interface LogSearch {
  schema: string;
  offsets: number[];
  start: number;
  size: number;
}

/** A part of a log: `/api/v1/jobs/ID/log`. */
export interface LogText {
  schema: string;
  text: string;
  offset: number;
  next: number;
  size: number;
  attempt: number;
  attempts: number;
  stream: "err" | "out";
  streams: ("err" | "out")[];
  ended: boolean;
}

/** Something that a user set, since when. */
export interface Mark {
  note: string;
  since: string | null;
}

/** All jobs that a list shows on its pages. */
export interface Matching {
  count: number;
  state?: string;
  group?: string;
  search?: string;
  array?: string;
}

/** The place of a job in a batch whose jobs have parameters. */
export interface MemberDetails {
  kind: string;
  batch: number;
  number: number;
  params: Record<string, Scalar>;
}

/** A value that a sweep makes small or large. */
export interface ObjectiveView {
  name: string;
  goal: string;
  source: string;
}

/** A job of another queue of this user. */
export interface OtherJob {
  label: string;
  name: string;
  pid: number;
  memory_bytes: number | null;
}

/** A job that is over, or several tasks of an array, which ran from `started` to `ended`. */
export interface PastLine {
  id: number;
  label: string;
  tasks: number;
  name: string;
  command: string;
  state: "cancelled" | "done" | "expired" | "failed" | "hung" | "idle" | "lost" | "oom" | "skipped" | "stopped" | "timeout";
  group: string;
  gpus: number;
  devices: string[];
  vram_bytes: number | null;
  submitted: string;
  started: string | null;
  ended: string;
  vram_mode: VramMode;
  reserved_bytes: number | null;
  peak_vram_bytes: number | null;
  utilisation_percent: number | null;
  title: string;
  exit_code: number | null;
  signal: number | null;
  note: string;
  wait_seconds: number | null;
  run_seconds: number | null;
  gpu_hours: number;
  attempts: number;
  peak_memory_bytes: number | null;
  directory: string;
  commit: string;
  tags: Record<string, string>;
  log: string | null;
  counts: Record<string, number>;
}

/** Some jobs: `stoker status ID... --json`. */
export interface SelectedJobs {
  schema: string;
  at: string;
  simulated: boolean;
  jobs: JobDetails[];
}

/** The curves of a job: `/api/v1/jobs/ID/series`. */
export interface Series {
  schema: string;
  at: string;
  label: string;
  limit_bytes: number | null;
  attempts: AttemptMemory[];
  progress: Point[];
  metrics: Record<string, Point[]>;
  steps: boolean;
}

/** The server as the page knows it: `/api/v1/session`. */
export interface Session {
  schema: string;
  host: string;
  user: string;
  version: string;
  simulated: boolean;
  readonly: boolean;
  pages: string[];
}

/** The queue: `stoker status --json`. */
export interface Status {
  schema: string;
  at: string;
  host: string;
  version: string;
  simulated: boolean;
  engine: EngineLine;
  devices: DeviceLine[];
  jobs: JobLine[];
  counts: Counts;
  hidden: Counts;
  today: Record<string, number>;
  expected_empty: string | null;
  notes: string[];
  filtered: boolean;
  groups: GroupLine[];
  users: UserLine[];
  interrupted: InterruptedRun[];
  failures: FailedJob[];
  total: Counts | null;
  web: string;
}

/** An axis of the charts: a parameter that differs between trials, or the value. */
export interface SweepAxis {
  name: string;
  log: boolean;
  names: string[];
}

/** Values by step of one trial. */
export interface SweepCurve {
  trial: number;
  job: number;
  state: string;
  points: Point[];
}

/** A sweep in a list. */
export interface SweepLine {
  id: number;
  name: string;
  state: string;
  method: string;
  total: number;
  counts: Record<string, number>;
  created: string;
  objective: string;
  best: number | null;
  params: Record<string, Scalar>;
}

/** All sweeps, the newest first: `stoker sweep list --json`. */
export interface SweepList {
  schema: string;
  sweeps: SweepLine[];
}

/** A sweep, a part of its trials, and its charts: `/api/v1/sweeps/ID`. */
export interface SweepPage {
  schema: string;
  sweep: SweepView;
  page: number;
  pages: number;
  total: number;
  axes: SweepAxis[];
  points: SweepPoint[];
  points_left_out: number;
  steps: Point[];
  curves: SweepCurve[];
  curves_left_out: number;
}

/** A trial in the charts. */
export interface SweepPoint {
  trial: TrialView;
  place: number;
  line: (number | null)[];
  goodness: number;
}

/** A sweep with all its trials: `stoker sweep status --json`, and `table --json`. */
export interface SweepView {
  schema: string;
  at: string;
  host: string;
  simulated: boolean;
  id: number;
  name: string;
  state: string;
  method: string;
  space: string[];
  command: string;
  objectives: ObjectiveView[];
  pruners: string[];
  created: string;
  total: number;
  counts: Record<string, number>;
  best: BestView[];
  importance: Record<string, number>;
  importance_method: string;
  gpu_hours: number;
  gpu_hours_saved: number;
  gpu_hours_full_trial: number | null;
  tuner: number | null;
  tuner_state: string;
  tuner_message: string;
  study: string | null;
  notices: string[];
  trials: TrialView[];
}

/** Tasks of an array that a list shows in one line. */
export interface TasksLine {
  label: string;
  state: string;
}

/** GPUs over time: `stoker history --timeline --json`. */
export interface Timeline {
  schema: string;
  at: string;
  host: string;
  simulated: boolean;
  engine_running: boolean;
  since: string;
  until: string;
  expected_empty: string | null;
  samples_start: string;
  samples_step_seconds: number;
  lanes: Lane[];
  left_out: number;
  without_gpu: number;
  colours: Record<string, number>;
}

/** One trial. */
export interface TrialView {
  number: number;
  job: number;
  state: string;
  params: Record<string, Scalar>;
  values: Record<string, number | null>;
  step: number | null;
  started: string | null;
  ended: string | null;
  seconds: number | null;
  gpu_hours: number;
  message: string;
}

/** The totals of a period. A queue belongs to one user, so that they are this user's. */
export interface Usage {
  schema: string;
  at: string;
  host: string;
  simulated: boolean;
  user: string;
  since: string | null;
  gpu_hours: number;
  busy_gpu_hours: number;
  saved_gpu_hours: number;
  outcomes: Record<string, number>;
  days: DayUsage[];
  groups: GroupUsage[];
  jobs: JobUsage[];
  hidden: number;
  users: UserLine[];
  colours: Record<string, number>;
}

/** The GPUs that one user has, and waits for. */
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

/** A column of a table of jobs; `field` is empty if its cell is made of several fields. */
export interface JobColumn<Line> {
  name: string;
  title: string;
  field: (keyof Line & string) | "";
  kind: "bytes" | "seconds" | "percent" | "hours" | "time" | "list" | "text";
  /** The name of this order at the server, if it has one. */
  sort: string;
  right: boolean;
}

export const JOBS_TABLE: readonly JobColumn<JobLine>[] = [
  {"name": "id", "title": "ID", "field": "label", "kind": "text", "sort": "id", "right": false},
  {"name": "state", "title": "State", "field": "state", "kind": "text", "sort": "state", "right": false},
  {"name": "name", "title": "Job", "field": "name", "kind": "text", "sort": "name", "right": false},
  {"name": "devices", "title": "GPU", "field": "devices", "kind": "list", "sort": "", "right": false},
  {"name": "memory", "title": "Memory", "field": "reserved_bytes", "kind": "bytes", "sort": "memory", "right": true},
  {"name": "progress", "title": "Progress", "field": "progress", "kind": "text", "sort": "", "right": false},
  {"name": "time", "title": "Time", "field": "seconds", "kind": "seconds", "sort": "seconds", "right": true},
  {"name": "left", "title": "When", "field": "", "kind": "text", "sort": "", "right": true},
];

export const HISTORY_TABLE: readonly JobColumn<PastLine>[] = [
  {"name": "id", "title": "ID", "field": "label", "kind": "text", "sort": "id", "right": false},
  {"name": "state", "title": "State", "field": "state", "kind": "text", "sort": "state", "right": false},
  {"name": "name", "title": "Job", "field": "name", "kind": "text", "sort": "name", "right": false},
  {"name": "devices", "title": "GPU", "field": "devices", "kind": "list", "sort": "", "right": false},
  {"name": "peak", "title": "Peak", "field": "peak_vram_bytes", "kind": "bytes", "sort": "", "right": true},
  {"name": "gpu_hours", "title": "GPU-h", "field": "gpu_hours", "kind": "hours", "sort": "", "right": true},
  {"name": "ran", "title": "Ran", "field": "run_seconds", "kind": "seconds", "sort": "", "right": true},
  {"name": "ended", "title": "Ended", "field": "ended", "kind": "time", "sort": "ended", "right": true},
];
