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

// settingLines has a line for each variable, and one for each word that it takes if these are only a few.
// One that changes nothing is restricted, so that none turns into one unnoticed.
func settingLines(string) ([]string, error) {
	var lines []string
	for _, v := range settings.Table() {
		lines = append(lines, fmt.Sprintf("%s default %q", v.Name, v.Default))
		for _, word := range v.Words {
			lines = append(lines, v.Name+" takes the word "+word)
		}
		if v.Words == nil {
			lines = append(lines, v.Name+" takes "+v.Takes)
		}
		if v.Inert {
			lines = append(lines, "only "+v.Name+" without effect")
		}
	}
	return lines, nil
}

// metricLines has a line for each metric. One with another label is another metric: what is joined or summed by labels changes.
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

// pathLines has a line for each method that http.yaml gives a path, as the OpenAPI file has it.
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
