package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// aloneText says which servers a change at one of them reaches.
const aloneText = "the server that is asked alone obeys: tell each replica"

func (p *program) reloadCommand() *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use:   "reload [flags]",
		Short: "Have a running server read its rules again, and wait for what comes of it",
		Long: `Reload has a running server read the files of its rules again, or ask its control plane for
everything again, and prints what has changed, or why the new rules were invalid; the last good ones
then stay in use. Each replica reads its own. With --dry-run the server reads its files, says what
would change, and changes nothing; a control plane is not asked then.

` + changeHelp + `

` + exitHelp + `
Invalid rules are a negative result.`,
		Example: `  ratelimitd reload
  ratelimitd reload --dry-run --addr 10.0.0.7:8081`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
				answer, err := a.ReloadRules(ctx, &adminv1.ReloadRulesRequest{Reason: c.reason, DryRun: c.dry})
				if err != nil {
					return err
				}
				err = c.show(answer, func() { p.reloaded(answer, c.dry) })
				if err == nil && answer.GetInvalid() {
					return errNegative
				}
				return err
			})
		},
	}
	c.add(p, cmd)
	return cmd
}

// reloaded says what came of a reload, or would.
func (p *program) reloaded(a *adminv1.ReloadRulesResponse, dry bool) {
	changes := int(a.GetTotalChanges())
	switch {
	case a.GetInvalid() && a.GetRules().GetLoaded() == nil:
		p.printf("%sinvalid, and there are no rules\n", dryText(dry))
	case a.GetInvalid() && changes > 0: // there is an overlay
		p.printf("%sinvalid, and the last good ones of the rules and of the overlay are used in its place: %s\n", dryText(dry), descriptors.CountText(changes, "change"))
	case a.GetInvalid():
		p.printf("%sinvalid, and the last good rules stay in use\n", dryText(dry))
	case changes == 0:
		p.printf("%snothing changed\n", dryText(dry))
	default:
		p.printf("%s%s\n", dryText(dry), descriptors.CountText(changes, "change"))
	}
	for _, problem := range a.GetProblems() {
		p.printf("  %s\n", problemText(problem))
	}
	p.more(int(a.GetTotalProblems()), len(a.GetProblems()))
	for _, line := range a.GetChanges() {
		p.printf("  %s\n", line)
	}
	p.more(changes, len(a.GetChanges()))
	if r := a.GetRules(); r.GetLoaded() != nil {
		p.printf("  in use: %s\n", rulesText(r))
	}
	p.printf("  %s\n", aloneText)
}

// more says how many of all are not shown.
func (p *program) more(all, shown int) {
	if n := all - shown; n > 0 {
		p.printf("  and %d more\n", n)
	}
}

func (p *program) drainCommand() *cobra.Command {
	var (
		c    changing
		undo bool
	)
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Take a running server out of service without ending it, or put it back",
		Long: `Drain has a running server report that it is neither healthy nor ready, as it does when it begins to
stop: Envoy and Kubernetes then send it no more requests. It does not end, and answers all clients that still
ask; /livez stays OK. It lasts until drain --undo, or until the process ends. A liveness probe that
asks /healthcheck instead of /livez would have Kubernetes restart it.

` + changeHelp + `

` + exitHelp,
		Example: `  ratelimitd drain --reason 'profiling it'
  ratelimitd drain --undo`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &adminv1.DrainRequest{Undo: undo, Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.Drain, request, func(answer *adminv1.DrainResponse) {
				p.printf("%s%s\n  %s\n", dryText(c.dry), drainText(answer, undo), aloneText)
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "put it back")
	return cmd
}

// drainText says what was done.
func drainText(a *adminv1.DrainResponse, undo bool) string {
	switch {
	case !undo && a.GetChanged():
		return "drained: it reports that it is not healthy, and answers all clients that still ask"
	case !undo:
		return fmt.Sprintf("drained already, since %s: nothing changed", timeText(a.GetDrained()))
	case !a.GetChanged():
		return "not drained: nothing changed"
	case !a.GetOtherwiseHealthy():
		return "put back, but it is not healthy for another reason: see ratelimitd status"
	}
	return "put back: it reports that it is healthy"
}
