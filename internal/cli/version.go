package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (p *program) versionCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  ratelimitd version",
		Args:    needsNone,
		RunE: func(*cobra.Command, []string) error {
			if o.json() {
				return p.printObject(struct {
					Version string `json:"version"`
					Go      string `json:"go"`
				}{release(), runtime.Version()})
			}
			p.printf("ratelimitd %s\n", version())
			return nil
		},
	}
	o.add(cmd)
	return cmd
}

// version returns the release and the version of Go.
func version() string { return release() + " " + runtime.Version() }

// release returns the module's version that the Go tool wrote into the binary, which is derived from a tag or the
// commit.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
