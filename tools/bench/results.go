package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// Names of servers.
const (
	idleServer = "idle"
	tunedIdle  = "tuned idle" // with ratelimitd's GOGC and stream workers
	fewServer  = "with 10"    // ratelimitd with 10 rules or counters
	ratelimitd = "ratelimitd"
	peer       = "peer"
)

// results are the measurements of one machine, by row.
type results struct {
	Machine proc.Machine      `json:"machine"`
	Rows    map[string]result `json:"rows"`
}

// result is the measurements of a row.
type result struct {
	Taken taken `json:"taken"`

	// Servers has the rounds of each server. A round has a sample for each step of the row, or one without steps. In
	// overload, the first sample is the closed loop that measured the peak.
	Servers map[string][][]sample `json:"servers"`
	Pairs   []sample              `json:"pairs,omitempty"` // of INCRBY and EXPIRE, one directly before each round
	Profile *profiled             `json:"profile,omitempty"`
}

// taken describes when and how a row was measured.
type taken struct {
	Date     time.Time `json:"date"`
	Rounds   int       `json:"rounds"`
	Seconds  float64   `json:"seconds"` // measured duration of each sample
	Seed     uint64    `json:"seed"`
	Versions versions  `json:"versions"`
}

// sample is loadgen's report of a step, with the activity of Redis.
type sample struct {
	Offered  float64 `json:"offered_rps,omitempty"` // calls a second
	Requests int64   `json:"requests"`
	OK       int64   `json:"ok,omitempty"`
	Over     int64   `json:"over_limit,omitempty"`
	Unknown  int64   `json:"unknown,omitempty"`
	Failed   int64   `json:"failed,omitempty"`
	Late     int64   `json:"late,omitempty"`
	Rate     float64 `json:"rps"` // answered calls
	Good     float64 `json:"good_rps"`
	Policy   float64 `json:"policy_rps,omitempty"`
	P50      float64 `json:"p50_us,omitempty"`
	P90      float64 `json:"p90_us,omitempty"`
	P99      float64 `json:"p99_us,omitempty"`
	P999     float64 `json:"p999_us,omitempty"`
	Lag      float64 `json:"lag_p99_us,omitempty"`

	CPU struct {
		Server float64 `json:"server,omitempty"`
		Redis  float64 `json:"redis,omitempty"`
		Envoy  float64 `json:"envoy,omitempty"`
	} `json:"cpu_us_per_request"`
	Scripts float64 `json:"scripts_per_second,omitempty"` // that Redis ran
	State   *state  `json:"state,omitempty"`              // of a server started for the sample
}

// figure is a number about a row that is comparable with other runs.
type figure string

// Figures are ratios within a round, except for those of many rules or counters with units in their names.
const (
	toIdle      figure = "server CPU ÷ idle server"
	toTuned     figure = "server CPU ÷ tuned idle server"
	toPeer      figure = "server CPU ÷ peer"
	redisToPeer figure = "Redis CPU ÷ peer"
	redisToPair figure = "Redis CPU ÷ INCRBY and EXPIRE"
	rateToPeer  figure = "requests/s ÷ peer"
	toFew       figure = "server CPU ÷ with 10"
	each        figure = "live bytes each"
	loading     figure = "seconds from start to ready"
	pause       figure = "longest pause for garbage, ms"
)

// values returns a figure for each round; nil if a number is missing.
func (r result) values(f figure) []float64 {
	cpu := func(s sample) float64 { return s.CPU.Server }
	inRedis := func(s sample) float64 { return s.CPU.Redis }
	ours := first(r.Servers[ratelimitd])
	switch f {
	case toIdle:
		return divide(ours, first(r.Servers[idleServer]), cpu)
	case toTuned:
		return divide(ours, first(r.Servers[tunedIdle]), cpu)
	case toPeer:
		return divide(ours, first(r.Servers[peer]), cpu)
	case redisToPeer:
		return divide(ours, first(r.Servers[peer]), inRedis)
	case redisToPair:
		return divide(ours, r.Pairs, inRedis)
	case rateToPeer:
		return divide(ours, first(r.Servers[peer]), func(s sample) float64 { return s.Rate })
	case toFew:
		return divide(ours, first(r.Servers[fewServer]), cpu)
	case each:
		return eachTakes(ours, first(r.Servers[fewServer]))
	case loading:
		return states(ours, ready)
	case pause:
		return states(ours, pauses)
	default:
		return nil
	}
}

// format returns the format of a figure's values.
func (f figure) format() string {
	if f == each {
		return "%.0f"
	}
	return "%.2f"
}

// first returns the first sample of each round.
func first(rounds [][]sample) []sample { return nth(rounds, 0) }

// nth returns the i-th sample of each round.
func nth(rounds [][]sample, i int) (all []sample) {
	for _, samples := range rounds {
		if i < len(samples) {
			all = append(all, samples[i])
		}
	}
	return all
}

// divide returns the ratio of each round, or nil if one is missing.
func divide(a, b []sample, number func(sample) float64) (all []float64) {
	if len(a) != len(b) {
		return nil
	}
	for i := range a {
		x := number(a[i]) / number(b[i])
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		all = append(all, x)
	}
	return all
}

// numbers returns a number of each sample.
func numbers(samples []sample, number func(sample) float64) []float64 {
	all := make([]float64, len(samples))
	for i, s := range samples {
		all[i] = number(s)
	}
	return all
}

// median returns the median; NaN without values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// readResults reads a file; a missing file is empty.
func readResults(path string) (r results, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return results{}, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", path, err)
	}
	return r, nil
}

// takes returns an error if n rows of a machine cannot be merged.
func (r *results) takes(from proc.Machine, n int) error {
	if r.Machine != (proc.Machine{}) && r.Machine != from && n < len(rows()) {
		return fmt.Errorf("what is there was measured on %s, and this is %s: measure all rows, or write nothing", r.Machine, from)
	}
	return nil
}

// merge replaces rows by new measurements. It drops rows of another machine and rows that no longer exist, which is an
// error unless all rows were measured.
func (r *results) merge(now results) error {
	if err := r.takes(now.Machine, len(now.Rows)); err != nil {
		return err
	}
	merged := map[string]result{}
	for _, row := range rows() {
		if one, found := now.Rows[row.name]; found {
			merged[row.name] = one
		} else if one, found := r.Rows[row.name]; found {
			merged[row.name] = one
		}
	}
	*r = results{now.Machine, merged}
	return nil
}

// write writes a file with a line for each sample.
func (r results) write(path string) error {
	var text bytes.Buffer
	head, err := json.Marshal(r.Machine)
	if err != nil {
		return err
	}
	fmt.Fprintf(&text, "{\"machine\": %s,\n\"rows\": {", head)
	comma := ""
	for _, row := range rows() {
		one, found := r.Rows[row.name]
		if !found {
			continue
		}
		line, err := json.Marshal(one)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s\n%q: %s", comma, row.name, bytes.ReplaceAll(line, []byte(`{"offered_rps"`), []byte("\n\t{\"offered_rps\"")))
		comma = ","
	}
	text.WriteString("\n}}\n")
	return os.WriteFile(path, text.Bytes(), 0o644)
}
