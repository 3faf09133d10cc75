/** The page of the group: who has which GPU until when, who waits, and what each user has used. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";

import { ApiError, call } from "../api";
import { clock, hours, known, moment, size, span } from "../format";
import { useKeys } from "../keys";
import { SmallTable } from "../parts/boxes";
import { Empty, Loading } from "../parts/placeholder";
import { go, hashOf, route, watchRoute } from "../router";
import { nextTheme } from "../theme";
import type { LabBooking, LabGpu, LabPage } from "../types";
import { PassForm } from "./pass";
import { HOURS_AHEAD, holders, isNow, near, people, spanOnLane, sum, untilText, useOf, whenDone, WORDS, type Holder, type Use } from "./model";

const REST_MS = 5000;
/** Users whom the line of a GPU names. */
const MOST_USERS = 3;
const MOST_MESSAGES = 3;
const MOST_BOOKINGS = 12;
const shown = signal<LabPage | null>(null);
const problem = signal<Error | null>(null);

async function load(): Promise<void> {
  try {
    shown.value = await call<LabPage>("lab");
    problem.value = null;
  } catch (error) {
    problem.value = error instanceof Error ? error : new Error(String(error));
  }
}

export function LabApp(): JSX.Element {
  const wall = route.value.view === "wall";
  useEffect(() => {
    watchRoute();
    void load();
    const timer = setInterval(() => {
      if (!document.hidden) void load();
    }, REST_MS);
    return () => clearInterval(timer);
  }, []);
  useKeys({ t: nextTheme, w: () => go(hashOf(wall ? "" : "wall")), Escape: () => go(hashOf("")) });
  useEffect(() => {
    document.documentElement.classList.toggle("wall", wall);
  }, [wall]);
  if (problem.value instanceof ApiError && problem.value.status === 401) return <PassForm enter={load} />;
  const page = shown.value;
  return page ? (
    <Content page={page} />
  ) : (
    <main class="lab">{problem.value ? <Empty title={problem.value.message} /> : <Loading lines={8} />}</main>
  );
}

function Content({ page }: { page: LabPage }): JSX.Element {
  const now = moment(page.at);
  const { view, argument: me } = route.value;
  const title = `${page.host}: who has which GPU`;
  useEffect(() => {
    document.title = title;
  }, [title]);
  return (
    <main class="lab">
      <Head page={page} now={now} />
      {problem.value ? (
        <p class="banner bad" role="status">
          <b>No answer from the server.</b> This is the state of {clock(now, Date.now(), true)}.
        </p>
      ) : null}
      {page.messages.slice(0, MOST_MESSAGES).map(({ user, at, text }) => (
        <p key={at} class="banner held">
          <b>{user} to all users:</b> {text}
        </p>
      ))}
      {view === "user" ? <Mine page={page} user={me} now={now} /> : null}
      <div class="parts">
        <Gpus page={page} now={now} me={view === "user" ? me : ""} />
        <div class="beside">
          <People page={page} now={now} />
          <Bookings page={page} now={now} />
        </div>
      </div>
    </main>
  );
}

function Head({ page, now }: { page: LabPage; now: number }): JSX.Element {
  const free = page.gpus.filter((gpu) => useOf(gpu, holdersOn(page, gpu), bookingsOf(page, gpu), now) === "free").length;
  return (
    <header class="lab-head">
      <h1>
        {page.host} {page.simulated ? <span class="badge">SIM</span> : null}
      </h1>
      <p class="sums">
        <span>
          <b class={free ? "good" : ""}>{free}</b> of {page.gpus.length} GPUs free
        </span>
        <span>
          <b>{sum(page.waiting)}</b> waiting
        </span>
      </p>
      <time dateTime={page.at}>{clock(now, now)}</time>
      <div class="tools">
        <label>
          Show{" "}
          <select
            value={route.value.view === "user" ? route.value.argument : ""}
            onChange={({ currentTarget: { value } }) => go(value ? hashOf("user", value) : hashOf(""))}
          >
            <option value="">all users</option>
            {page.users.map(({ user }) => (
              <option key={user} value={user}>
                {user}
              </option>
            ))}
          </select>
        </label>
        <a href={hashOf("wall")} title="For a screen on the wall (w); Esc leaves it">
          Wall
        </a>
      </div>
    </header>
  );
}

function Mine({ page, user, now }: { page: LabPage; user: string; now: number }): JSX.Element {
  return (
    <section class="card mine" aria-label={`Jobs of ${user}`}>
      <h2>When are the jobs of {user} done?</h2>
      {whenDone(page, user, now).map((sentence) => (
        <p key={sentence}>{sentence}</p>
      ))}
    </section>
  );
}

// -- GPUs ----------------------------------------------------------------------------------------

const holdersOn = (page: LabPage, gpu: LabGpu): Holder[] =>
  holders(page.jobs.filter((job) => job.gpus.includes(gpu.label)));
const bookingsOf = (page: LabPage, gpu: LabGpu): LabBooking[] =>
  page.bookings.filter((booking) => booking.gpus.includes(gpu.label));

function Gpus({ page, now, me }: { page: LabPage; now: number; me: string }): JSX.Element {
  const ticks = Array.from({ length: HOURS_AHEAD / 6 }, (_, index) => index * 6);
  return (
    <section class="card gpus" aria-label="GPUs" style={{ "--rows": page.gpus.length }}>
      <div class="axis" aria-hidden="true">
        <span class="ticks">
          {ticks.map((tick) => (
            <span key={tick}>{tick ? near(now + tick * 3_600_000, now) : "now"}</span>
          ))}
        </span>
      </div>
      {page.gpus.length ? (
        <ul>
          {page.gpus.map((gpu) => (
            <Gpu key={gpu.label} gpu={gpu} holds={holdersOn(page, gpu)} booked={bookingsOf(page, gpu)} now={now} me={me} />
          ))}
        </ul>
      ) : (
        <Empty title="No GPU is known." />
      )}
    </section>
  );
}

interface GpuProps {
  gpu: LabGpu;
  holds: Holder[];
  booked: LabBooking[];
  now: number;
  me: string;
}

function Gpu({ gpu, holds, booked, now, me }: GpuProps): JSX.Element {
  const use = useOf(gpu, holds, booked, now);
  const percent = gpu.utilisation_percent;
  const active = booked.filter((booking) => isNow(booking, now));
  return (
    <li class={`gpu ${use}`} data-gpu={gpu.label}>
      <h2 title={gpu.model}>
        GPU {gpu.label}{" "}
        <span class="model">
          {gpu.model.replace(/^NVIDIA |-(SXM|PCI).*$| \d+GB?$/gi, "")} {size(gpu.memory_bytes)}
        </span>
      </h2>
      <p class="load" title="How busy the GPU is">
        {percent === null ? "?" : `${Math.round(percent)}%`}
        {use === "idle" ? <State use={use} /> : null}
      </p>
      <ul class="who">
        {holds.slice(0, holds.length > MOST_USERS ? MOST_USERS - 1 : MOST_USERS).map((holder) => (
          <li key={holder.user} class={holder.user === me ? "mine" : ""} title={titlesOf(holder)}>
            <b>{holder.user}</b>
            {holder.jobs.length > 1 ? <span> ×{holder.jobs.length}</span> : null}
            <span class="until">{untilText(holder, now)}</span>
          </li>
        ))}
        {holds.length > MOST_USERS ? <li>and {holds.length - MOST_USERS + 1} more users</li> : null}
        {holds.length ? null : (
          <li class="alone">
            <b>{(use === "others" ? gpu.strangers : use === "booked" ? active.map(({ user }) => user) : []).join(", ")}</b>
            <State use={use} />
          </li>
        )}
      </ul>
      <div class="lane" role="img" aria-label={laneText(gpu, holds, booked, now)}>
        {holds.map((holder, place) => (
          <Bar
            key={holder.user}
            kind={`${holder.end === null ? "open" : ""} ${holder.user === me ? "mine" : ""}`}
            span={spanOnLane(now, Math.max(holder.end ?? Infinity, now + 900_000), now)}
            row={[place, holds.length]}
          />
        ))}
        {booked.map((booking) => (
          <Bar
            key={booking.begin + booking.user}
            kind="booking"
            span={spanOnLane(moment(booking.begin), moment(booking.end), now)}
            row={[0, 1]}
            text={booking.user}
          />
        ))}
      </div>
    </li>
  );
}

function State({ use }: { use: Use }): JSX.Element {
  return (
    <span class="word">
      <span class="mark" aria-hidden="true" /> {WORDS[use]}
    </span>
  );
}

interface BarProps {
  kind: string;
  span: [number, number];
  /** Which of so many bars above each other it is. */
  row: [number, number];
  text?: string;
}

function Bar({ kind, span: [begin, end], row: [place, count], text = "" }: BarProps): JSX.Element | null {
  if (begin >= 1) return null;
  const style = {
    left: `${100 * begin}%`,
    width: `${100 * (end - begin)}%`,
    top: `${(100 * place) / count}%`,
    height: `${100 / count}%`,
  };
  return (
    <span class={`bar ${kind}`} style={style}>
      {text}
    </span>
  );
}

const titlesOf = ({ jobs }: Holder): string =>
  jobs.map(({ job, title }) => [job && `job ${job}`, title].filter(Boolean).join(" ")).join("\n");

function laneText(gpu: LabGpu, holds: Holder[], booked: LabBooking[], now: number): string {
  const held = holds.map((holder) => `${holder.user} until ${untilText(holder, now)}`);
  const bookings = booked.map((booking) => `booked by ${booking.user} ${periodText(booking, now)}`);
  return `GPU ${gpu.label}: ${[...held, ...bookings].join(", ") || "nothing planned"}`;
}

const periodText = ({ begin, end }: LabBooking, now: number): string =>
  `${near(moment(begin), now)} to ${near(moment(end), now)}`;

// -- users and bookings --------------------------------------------------------------------------

function People({ page, now }: { page: LabPage; now: number }): JSX.Element {
  const lines = people(page);
  const most = Math.max(...lines.map(({ weeks }) => weeks?.gpu_hours[0] ?? 0), 0.001);
  return (
    <section class="card people" aria-label="Users">
      <h2>Users</h2>
      <SmallTable
        name="users"
        rows={lines}
        columns={[
          ["User", ({ user }) => <b title={user}>{user}</b>, "name"],
          ["GPUs", ({ counts }) => counts?.gpus || "–", "right"],
          ["Waiting", ({ counts }) => counts?.waiting || "–", "right"],
          ["longest wait", ({ since }) => (since === null ? "–" : span((now - since) / 1000)), "right wide"],
          ["GPU-h, 7 days", ({ weeks }) => <Hours value={weeks?.gpu_hours[0]} most={most} />, "week"],
          ["of it idle", ({ weeks }) => known(hours, weeks?.idle_gpu_hours ?? null), "right wide"],
          ["7 days before", ({ weeks }) => known(hours, weeks?.gpu_hours[1] ?? null), "right wide"],
          ["waited, 7 days", ({ weeks }) => known((value) => span(3600 * value), weeks?.waiting_hours ?? null), "right wide"],
        ]}
      />
    </section>
  );
}

function Hours({ value, most }: { value: number | undefined; most: number }): JSX.Element {
  return value === undefined ? (
    <>–</>
  ) : (
    <span class="hours">
      <span class="number">{hours(value)}</span>
      <span class="track" aria-hidden="true">
        <i style={{ width: `${(100 * value) / most}%` }} />
      </span>
    </span>
  );
}

function Bookings({ page, now }: { page: LabPage; now: number }): JSX.Element | null {
  if (!page.bookings.length) return null;
  const more = page.bookings.length - MOST_BOOKINGS;
  return (
    <section class="card bookings" aria-label="Bookings">
      <h2>Bookings</h2>
      <ul>
        {page.bookings.slice(0, MOST_BOOKINGS).map((booking) => (
          <li key={booking.begin + booking.user}>
            <span>
              <b>{booking.user}</b> GPU {booking.gpus.join(", ")}
            </span>
            <span class="when">
              {isNow(booking, now) ? `until ${near(moment(booking.end), now)}` : periodText(booking, now)}
            </span>
            {booking.why ? <span class="second">{booking.why}</span> : null}
          </li>
        ))}
      </ul>
      {more > 0 ? <p class="faint">and {more} more</p> : null}
    </section>
  );
}
