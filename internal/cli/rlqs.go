package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) rlqsCommand() *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use:   "rlqs [flags]",
		Short: "Show how limits are divided among RLQS clients",
		Long: `Rlqs shows the limits that a running server divides among its RLQS clients (Envoys with the filter
rate_limit_quota): how much of each limit is assigned, and the demand and share of each client, in
hits per second. It shows at most 100 limits and 100 clients of each. --output json prints a line for
each limit.`,
		Example: `  ratelimitd rlqs
  ratelimitd rlqs --addr 10.0.0.7:8081 --token-file token --output json`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := fetch(cmd.Context(), q.client, adminv1.AdminServiceClient.Status, &adminv1.StatusRequest{})
			if err == nil && len(s.GetDividedLimits()) == 0 && !q.json() {
				p.printf("this server divides no limits: no Envoy has reported a bucket of a rule with rlqs to it\n")
			}
			for _, d := range s.GetDividedLimits() {
				if err == nil {
					err = q.show(d, func() { p.divided(d) })
				}
			}
			return err
		},
	}
	q.add(p, cmd)
	return cmd
}

// divided prints a limit that is divided, and its clients.
func (p *program) divided(d *adminv1.DividedLimit) {
	p.printf("%s %s: %s\n", shellWord(d.GetDomain()), entriesArgument(d.GetEntries(), false), dividedText(d))
	if len(d.GetClients()) == 0 {
		return
	}
	rows := [][]string{{"  CLIENT", "STATE", "WEIGHT", "DEMAND/S", "SHARE/S"}}
	for _, c := range d.GetClients() {
		rows = append(rows, []string{
			"  " + c.GetName(), c.GetState(), strconv.FormatFloat(c.GetWeight(), 'g', -1, 64), rateText(c.GetDemand()), rateText(c.GetShare()),
		})
	}
	p.table(rows)
}

func rateText(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }

// dividedText says how a limit is divided.
func dividedText(d *adminv1.DividedLimit) string {
	if d.GetAnswer() != "divided" {
		return d.GetAnswer()
	}
	mode := "fast"
	if d.GetIsStrict() {
		mode = "strict"
	}
	text := sprintf("%s/s assigned of a limit of %s/s, to %s, %s; %.0f left",
		rateText(d.GetAssigned()), rateText(d.GetRate()), descriptors.CountText(int(d.GetTotalClients()), "client"), mode, d.GetLeft())
	if d.GetPart() < d.GetCapacity() {
		text += sprintf("; this replica may assign %s/s of the %s/s of all replicas", rateText(d.GetPart()), rateText(d.GetCapacity()))
	}
	return text
}
