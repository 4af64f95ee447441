package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// problemWriters returns how check can print problems, by the name of the form. Each writes a document, complete also
// without problems, in which every problem has its file.
func problemWriters() map[string]func(io.Writer, descriptors.Problems) error {
	return map[string]func(io.Writer, descriptors.Problems) error{
		"text":   writeText,
		"json":   writeJSON,
		"github": writeGitHub,
		"sarif":  writeSARIF,
	}
}

// problemForms are the forms in the order in which the help names them.
const problemForms = "text, json, github or sarif"

func writeText(w io.Writer, all descriptors.Problems) error {
	for _, p := range all {
		if _, err := fmt.Fprintln(w, p); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON writes an array with one object, on one line, for each problem. The names of its fields do not change.
func writeJSON(w io.Writer, all descriptors.Problems) error {
	type object struct {
		File     string `json:"file"`
		Line     int    `json:"line"`     // from 1; 0 if the problem is of the file as a whole
		Column   int    `json:"column"`   // the same
		Path     string `json:"path"`     // in the tree of rules; may be empty
		Severity string `json:"severity"` // error or warning
		Message  string `json:"message"`
	}
	lines := make([]string, 0, len(all))
	for _, p := range all {
		line, err := json.Marshal(object{p.File, p.Line, p.Column, p.Path, severity(p), p.Text})
		if err != nil {
			return err
		}
		lines = append(lines, string(line))
	}
	_, err := fmt.Fprintf(w, "[%s]\n", strings.Join(lines, ",\n "))
	return err
}

func severity(p descriptors.Problem) string {
	if p.Warning {
		return "warning"
	}
	return "error"
}

// writeGitHub writes workflow commands, which GitHub Actions shows beside the lines of a pull request.
func writeGitHub(w io.Writer, all descriptors.Problems) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, p := range all {
		at := "file=" + property.Replace(filepath.ToSlash(p.File))
		if p.Line > 0 {
			at += fmt.Sprintf(",line=%d", p.Line)
		}
		if p.Column > 0 {
			at += fmt.Sprintf(",col=%d", p.Column)
		}
		if p.Path != "" {
			at += ",title=" + property.Replace(p.Path)
		}
		if _, err := fmt.Fprintf(w, "::%s %s::%s\n", severity(p), at, data.Replace(p.Text)); err != nil {
			return err
		}
	}
	return nil
}

// The parts of SARIF 2.1.0 that are used here, by the names of its specification.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string       `json:"id"`
		ShortDescription sarifMessage `json:"shortDescription"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		PhysicalLocation sarifPhysical  `json:"physicalLocation"`
		LogicalLocations []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		ArtifactLocation sarifArtifact `json:"artifactLocation"`
		Region           sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
	sarifLogical struct {
		FullyQualifiedName string `json:"fullyQualifiedName"`
	}
)

// The rules that a result of SARIF can break.
const (
	sarifInvalid    = "invalid"
	sarifSuspicious = "suspicious"
)

// writeSARIF writes a log with one run. What is wrong with a file as a whole is reported on its first line, because code
// scanning takes no result without one.
func writeSARIF(w io.Writer, all descriptors.Problems) error {
	run := sarifRun{
		Tool: sarifTool{sarifDriver{Name: "ratelimitd", Version: release(), Rules: []sarifRule{
			{sarifInvalid, sarifMessage{"Rules that are invalid"}},
			{sarifSuspicious, sarifMessage{"Rules that a server loads, but that may not mean what was intended"}},
		}}},
		ColumnKind: "unicodeCodePoints",
		Results:    []sarifResult{},
	}
	for _, p := range all {
		id := sarifInvalid
		if p.Warning {
			id = sarifSuspicious
		}
		file := url.URL{Path: filepath.ToSlash(p.File)}
		at := sarifLocation{PhysicalLocation: sarifPhysical{sarifArtifact{file.String()}, sarifRegion{max(p.Line, 1), p.Column}}}
		if p.Path != "" {
			at.LogicalLocations = []sarifLogical{{p.Path}}
		}
		run.Results = append(run.Results, sarifResult{id, severity(p), sarifMessage{p.Text}, []sarifLocation{at}})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}})
}
