// Command dashboards writes the dashboard for Grafana into deploy/grafana, and a copy of everything in there into the Helm chart, which
// can only use files of its own. The queries are in rows of panels, one function for each row; the types are those of Grafana's
// foundation SDK. The alerts and recording rules, deploy/grafana/rules.yaml, are written by hand.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// chart is where the Helm chart has its copies.
const chart = "examples/kubernetes/chart/files"

func main() {
	root := flag.String("root", "../..", "the top of the repository")
	flag.Parse()
	if err := write(*root); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := outputs(root)
	if err != nil {
		return err
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// outputs returns the files to write, by their paths below root.
func outputs(root string) (map[string][]byte, error) {
	board, err := board()
	if err != nil {
		return nil, fmt.Errorf("building the dashboard: %w", err)
	}
	rules, err := os.ReadFile(filepath.Join(root, "deploy", "grafana", "rules.yaml"))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"deploy/grafana/dashboard.json": board, chart + "/dashboard.json": board, chart + "/rules.yaml": rules}, nil
}
