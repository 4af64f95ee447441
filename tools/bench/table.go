package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Numbers of samples to print.
func offered(s sample) float64    { return s.Offered }
func rate(s sample) float64       { return s.Rate }
func good(s sample) float64       { return s.Good }
func policy(s sample) float64     { return s.Policy }
func p50(s sample) float64        { return s.P50 / 1000 }
func p99(s sample) float64        { return s.P99 / 1000 }
func p999(s sample) float64       { return s.P999 / 1000 }
func lag(s sample) float64        { return s.Lag / 1000 }
func cpu(s sample) float64        { return s.CPU.Server }
func redisCPU(s sample) float64   { return s.CPU.Redis }
func envoyCPU(s sample) float64   { return s.CPU.Envoy }
func scripts(s sample) float64    { return 100 * s.Scripts / s.Rate }
func unanswered(s sample) float64 { return 100 * float64(s.Failed+s.Late) / float64(s.Requests) }

// named returns the servers of a result in load order.
func (r result) named() []string {
	return slices.DeleteFunc([]string{
		idleServer, tunedIdle, fewServer, ratelimitd, noFilter, ourMemory, ourRedis, peer, limitadorMemory, limitadorRedis, limitadorBehind,
	}, func(s string) bool { return len(r.Servers[s]) == 0 })
}

// print prints the medians over rounds for each row, server, and step.
func (r results) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "row\tserver\toffered/s\treq/s\tgood/s\tp50 ms\tp99 ms\tCPU µs/req\t÷ idle\t÷ peer\tRedis µs/req\t÷ pair\t÷ peer\tEnvoy µs/req\t")
	for _, row := range rows() {
		one, found := r.Rows[row.name]
		if !found {
			continue
		}
		name := row.name
		for _, server := range one.named() {
			for i := range one.Servers[server][0] {
				s := nth(one.Servers[server], i)
				ratios := [4]string{"–", "–", "–", "–"}
				if server == ratelimitd && len(row.steps) == 0 {
					for i, f := range []figure{toIdle, toPeer, redisToPair, redisToPeer} {
						ratios[i] = spread("%.2f", one.values(f))
					}
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, server,
					middle("%.0f", s, offered), middle("%.0f", s, rate), middle("%.0f", s, good), middle("%.2f", s, p50), middle("%.2f", s, p99),
					middle("%.1f", s, cpu), ratios[0], ratios[1], middle("%.1f", s, redisCPU), ratios[2], ratios[3], middle("%.1f", s, envoyCPU))
				name = ""
			}
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	r.printMany(w)
	return nil
}

// printMany prints the figures of rows with many rules or counters, which do not fit the table's columns.
func (r results) printMany(w io.Writer) {
	for _, row := range rows() {
		for _, g := range row.goals {
			if values := r.Rows[row.name].values(g.figure); row.part == many && len(values) > 0 {
				fmt.Fprintf(w, "%s: %s: %s\n", row.name, g.figure, spread(g.figure.format(), values))
			}
		}
	}
}

// middle formats the median of a number over samples; a dash if there is none.
func middle(format string, samples []sample, number func(sample) float64) string {
	x := median(numbers(samples, number))
	if math.IsNaN(x) || x == 0 {
		return "–"
	}
	return fmt.Sprintf(format, x)
}

// spread formats the median of values and, if there are several, their range.
func spread(format string, values []float64) string {
	switch len(values) {
	case 0:
		return "–"
	case 1:
		return fmt.Sprintf(format, values[0])
	default:
		return fmt.Sprintf(format+" ("+format+"–"+format+")", median(values), slices.Min(values), slices.Max(values))
	}
}
