package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// table has the measurements of all rounds.
type table struct {
	results []result
	pairs   []sample // of pairs of INCRBY and EXPIRE, one per round; Redis says what a pair costs
}

// result has the measurements of one kind of traffic.
type result struct {
	traffic traffic
	servers []string            // in the order in which they are loaded
	samples map[string][]sample // by server, one per round
}

func (r *result) add(server string, s sample) {
	if r.samples == nil {
		r.samples = map[string][]sample{}
	}
	if r.samples[server] == nil {
		r.servers = append(r.servers, server)
	}
	r.samples[server] = append(r.samples[server], s)
}

// What is compared of samples.
func rate(s sample) float64     { return s.Rate }
func p99(s sample) float64      { return s.P99 / 1000 }
func cpu(s sample) float64      { return s.CPU }
func redisCPU(s sample) float64 { return s.Redis }
func scripts(s sample) float64  { return 100 * s.Scripts / s.Rate }

// print prints for each traffic the medians of the rounds for each server and, where there is a peer, a row of ratios.
func (t *table) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "traffic\tserver\treq/s\tp99 ms\tCPU µs/req\t÷ idle\tRedis µs/req\t÷ pair\tscripts/100 req\t")
	if len(t.pairs) > 0 {
		fmt.Fprintf(tw, "INCRBY and EXPIRE, 100,000 keys\t%d in a pipeline\t%s\t–\t–\t–\t%s\t1.00\t–\t\n", pipelined,
			of("%.0f", t.pairs, rate), of("%.1f", t.pairs, redisCPU))
	}
	for i := range t.results {
		t.results[i].print(tw, t.pairs)
	}
	return tw.Flush()
}

func (r *result) print(w io.Writer, pairs []sample) {
	idle := r.samples[idleServer]
	for i, server := range r.servers {
		name, s := r.traffic.name, r.samples[server]
		if i > 0 {
			name = ""
		}
		toIdle, redis, toPair, ran := "–", "–", "–", "–"
		if server != idleServer {
			toIdle = ratios(s, idle, cpu)
		}
		if server != idleServer && r.traffic.redis {
			redis, toPair = of("%.1f", s, redisCPU), ratios(s, pairs, redisCPU)
		}
		if server == ratelimitd && r.traffic.redis {
			ran = of("%.2f", s, scripts)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, server,
			of("%.0f", s, rate), of("%.1f", s, p99), of("%.1f", s, cpu), toIdle, redis, toPair, ran)
	}
	if theirs := r.samples[peer]; theirs != nil {
		ours := r.samples[ratelimitd]
		fmt.Fprintf(w, "\t%s ÷ %s\t%s\t%s\t%s\t–\t%s\t–\t–\t\n", ratelimitd, peer,
			ratios(ours, theirs, rate), ratios(ours, theirs, p99), ratios(ours, theirs, cpu), ratios(ours, theirs, redisCPU))
	}
}

// of formats the median of one number of samples.
func of(format string, samples []sample, number func(sample) float64) string {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = number(s)
	}
	return fmt.Sprintf(format, median(values))
}

// ratios formats the median of the ratios of the rounds, and their range if there are several.
func ratios(a, b []sample, number func(sample) float64) string {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = number(a[i]) / number(b[i])
		if math.IsNaN(all[i]) || math.IsInf(all[i], 0) {
			return "–"
		}
	}
	if len(all) == 1 {
		return fmt.Sprintf("%.2f", all[0])
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(all), slices.Min(all), slices.Max(all))
}

// median returns the middle value; of an even number of values, the mean of the middle two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
