package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// aloneText says which servers a change reaches.
const aloneText = "applies to this server only: repeat it for each replica"

func (p *program) reloadCommand() *cobra.Command {
	var c changing
	return c.add(p, &cobra.Command{
		Use:   "reload [flags]",
		Short: "Reload rules and show the result",
		Long: `Reload makes a running server read its rule files again, or fetch its rules again from the control
plane, and shows the changes. If the new rules are invalid, it shows why, and the last valid rules
stay in use. Each replica reads its own files.

` + changeHelp + `

` + exitHelp + `
Invalid rules are a negative result.`,
		Example: `  ratelimitd reload
  ratelimitd reload --dry-run --addr 10.0.0.7:8081`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &adminv1.ReloadRulesRequest{Reason: c.reason, DryRun: c.dry}
			answer, err := fetch(cmd.Context(), c.client, adminv1.AdminServiceClient.ReloadRules, request)
			if err == nil {
				err = c.show(answer, func() { p.reloaded(answer, c.dry) })
			}
			if err == nil && answer.GetInvalid() {
				return errNegative
			}
			return err
		},
	})
}

// reloaded shows the result of a reload, or what it would be.
func (p *program) reloaded(a *adminv1.ReloadRulesResponse, dry bool) {
	changes := int(a.GetTotalChanges())
	result := descriptors.CountText(changes, "change")
	switch {
	case a.GetInvalid() && a.GetRules().GetLoaded() == nil:
		result = "INVALID, and no rules are in use"
	case a.GetInvalid() && changes > 0: // there is an overlay
		result = "INVALID in part: the last valid rules or overlay are used in its place, " + result
	case a.GetInvalid():
		result = "INVALID, the last valid rules stay in use"
	case changes == 0:
		result = "no changes"
	}
	p.printf("%s rules: %s\n", doneText(dry, "Reloaded", "reload"), result)
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
		Short: "Take a server out of service without stopping it, or put it back",
		Long: `Drain makes a running server report that it is unhealthy and not ready, so that Envoy and Kubernetes
send it no more requests. It keeps running and keeps answering; /livez stays OK. It lasts until
drain --undo or until the process ends. Kubernetes restarts the server if a liveness probe queries
/healthcheck instead of /livez.

` + changeHelp + `

` + exitHelp,
		Example: `  ratelimitd drain --reason 'profiling it'
  ratelimitd drain --undo`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &adminv1.DrainRequest{Undo: undo, Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.Drain, request, func(answer *adminv1.DrainResponse) {
				p.printf("%s\n  %s\n", drainText(answer, c.dry, undo), aloneText)
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "put the server back into service")
	return cmd
}

// drainText says what was done, or would be.
func drainText(a *adminv1.DrainResponse, dry, undo bool) string {
	switch {
	case !undo && a.GetChanged():
		return doneText(dry, "Drained", "drain") + ": reports unhealthy, still answers requests" + undoText(dry, "drain --undo")
	case !undo:
		return fmt.Sprintf("Already drained for %s · undo: ratelimitd drain --undo", age(a.GetDrained()))
	case !a.GetChanged():
		return "Not drained: nothing to undo"
	case !a.GetOtherwiseHealthy():
		return doneText(dry, "Back", "go back") + " in service, but unhealthy for another reason: see ratelimitd status"
	}
	return doneText(dry, "Back", "go back") + " in service: reports healthy" + undoText(dry, "drain")
}
