package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
)

// report is the printed result of a step.
type report struct {
	Peak    bool    `json:"peak,omitempty"` // of the closed loop of -times
	Offered float64 `json:"offered_rps"`    // 0 in a closed loop

	Requests  int64 `json:"requests"` // calls due during the measurement
	OK        int64 `json:"ok"`
	OverLimit int64 `json:"over_limit"`
	Unknown   int64 `json:"unknown"` // answered with code UNKNOWN
	Failed    int64 `json:"failed"`  // ended with an error or their connection
	Late      int64 `json:"late"`    // timed out

	Rate   float64 `json:"rps"`        // answered calls per second
	Good   float64 `json:"good_rps"`   // calls answered OK in time, per second
	Policy float64 `json:"policy_rps"` // calls rejected in time, per second

	P50  float64 `json:"p50_us"` // of all calls, from when they were due
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
	Lag  float64 `json:"lag_p99_us"` // delay of sending calls

	CPU  map[string]float64 `json:"cpu_us_per_request"` // of each watched process, divided by all ended calls
	Busy map[string]float64 `json:"busy"`               // number of processors kept busy by each watched process
}

// Range of the latencies in histograms, in µs, and their precision.
const (
	shortest, longest = 1, 60_000_000
	digits            = 3
)

// shards is the number of histograms that connections share.
const shards = 8

// tally counts outcomes.
type tally struct {
	from, to, limit time.Duration // range of due times; time limit of an answer
	shards          [shards]shard
}

type shard struct {
	mu            sync.Mutex
	kinds, inTime [calls.Kinds]int64
	took, lag     *hdrhistogram.Histogram
}

// newTally returns a tally of calls due between two times. With a limit of 0, all answers are in time.
func newTally(from, to, limit time.Duration) *tally {
	t := &tally{from: from, to: to, limit: limit}
	for i := range t.shards {
		t.shards[i].took = hdrhistogram.New(shortest, longest, digits)
		t.shards[i].lag = hdrhistogram.New(shortest, longest, digits)
	}
	return t
}

// add counts an outcome.
func (t *tally) add(conn int, o calls.Outcome) {
	if o.Due < t.from || o.Due >= t.to {
		return
	}
	s := &t.shards[conn%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[o.Kind]++
	if t.limit == 0 || o.Took <= t.limit {
		s.inTime[o.Kind]++
	}
	record(s.took, o.Took)
	record(s.lag, o.Lag)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), shortest), longest)) // the value is in the range
}

// report summarizes the counts of a period.
func (t *tally) report(d time.Duration) report {
	var r report
	took, lag := hdrhistogram.New(shortest, longest, digits), hdrhistogram.New(shortest, longest, digits)
	var good, policy int64
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		r.OK += s.kinds[calls.OK]
		r.OverLimit += s.kinds[calls.OverLimit]
		r.Unknown += s.kinds[calls.Unknown]
		r.Failed += s.kinds[calls.Failed] + s.kinds[calls.Lost] + s.kinds[calls.Reset]
		r.Late += s.kinds[calls.Late]
		good, policy = good+s.inTime[calls.OK], policy+s.inTime[calls.OverLimit]
		took.Merge(s.took)
		lag.Merge(s.lag)
		s.mu.Unlock()
	}
	answered := r.OK + r.OverLimit + r.Unknown
	r.Requests = answered + r.Failed + r.Late
	r.Rate, r.Good, r.Policy = float64(answered)/d.Seconds(), float64(good)/d.Seconds(), float64(policy)/d.Seconds()
	quantile := func(q float64) float64 { return float64(took.ValueAtQuantile(q)) }
	r.P50, r.P90, r.P99, r.P999, r.Max = quantile(50), quantile(90), quantile(99), quantile(99.9), float64(took.Max())
	r.Lag = float64(lag.ValueAtQuantile(99))
	return r
}

// charge divides the processor time of the watched processes by the number of requests.
func (r *report) charge(before, after map[string]time.Duration, took time.Duration) {
	r.CPU, r.Busy = map[string]float64{}, map[string]float64{}
	for name, t := range after {
		d := t - before[name]
		r.Busy[name] = d.Seconds() / took.Seconds()
		if r.Requests > 0 {
			r.CPU[name] = d.Seconds() * 1e6 / float64(r.Requests)
		}
	}
}

// watched is a process whose processor time is measured.
type watched struct {
	name string
	pid  int
}

// watchedIn parses NAME=PID,NAME=PID.
func watchedIn(text string) (all []watched, err error) {
	for w := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(w, "=")
		pid, err := strconv.Atoi(number)
		if err != nil || name == "" || pid < 1 {
			return nil, fmt.Errorf("want NAME=PID between commas, not %q", w)
		}
		all = append(all, watched{name, pid})
	}
	return all, nil
}

// spent returns the processor time of processes by name.
func spent(all []watched) (map[string]time.Duration, error) {
	sums := map[string]time.Duration{}
	for _, w := range all {
		busy, err := proc.Busy(w.pid)
		if err != nil {
			return nil, fmt.Errorf("looking at %s: %w", w.name, err)
		}
		sums[w.name] += busy
	}
	return sums, nil
}
