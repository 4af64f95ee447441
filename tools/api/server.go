package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// settingLines returns a line for each variable, and one for each value if there are only a few. A variable without
// effect is restricted, so that a variable that loses its effect is detected.
func settingLines(string) ([]string, error) {
	var lines []string
	for _, v := range settings.Table() {
		lines = append(lines, fmt.Sprintf("%s default %q", v.Name, v.Default))
		for _, word := range v.Words {
			lines = append(lines, v.Name+" takes the word "+word)
		}
		if v.Words == nil {
			lines = append(lines, v.Name+" takes "+v.Accepts)
		}
		if v.Inert {
			lines = append(lines, "only "+v.Name+" without effect")
		}
	}
	return lines, nil
}

// metricLines returns a line for each metric with its labels. Another label makes another metric, because joins and sums by
// labels change.
func metricLines(string) ([]string, error) {
	var lines []string
	for _, section := range stats.Table() {
		for _, r := range section.Rows {
			line := fmt.Sprintf("%s %s {%s}", r.Name, r.Type, strings.Join(r.Labels, ","))
			if r.Statsd != "" {
				line += " " + r.Statsd
			}
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// pathLines returns a line for each HTTP method and path in the OpenAPI file, from http.yaml.
func pathLines(repository string) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(repository, "proto/ratelimitd/admin/v1/openapi.swagger.json"))
	if err != nil {
		return nil, err
	}
	var openapi struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(raw, &openapi); err != nil {
		return nil, err
	}
	var lines []string
	for path, methods := range openapi.Paths {
		for method, operation := range methods {
			lines = append(lines, fmt.Sprintf("%s %s %s", path, strings.ToUpper(method), operation.OperationID))
		}
	}
	return lines, nil
}
