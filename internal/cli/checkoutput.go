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
	objects := make([]object, len(all))
	for i, p := range all {
		objects[i] = object{p.File, p.Line, p.Column, p.Path, severity(p), p.Text}
	}
	text, err := jsonArray(objects)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
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

// The rules that a result of SARIF can break.
const (
	sarifInvalid    = "invalid"
	sarifSuspicious = "suspicious"
)

// writeSARIF writes a log of SARIF 2.1.0 with one run. What is wrong with a file as a whole is reported on its first line, because code
// scanning takes no result without one.
func writeSARIF(w io.Writer, all descriptors.Problems) error {
	type object map[string]any
	text := func(s string) object { return object{"text": s} }
	results := []object{}
	for _, p := range all {
		rule := sarifInvalid
		if p.Warning {
			rule = sarifSuspicious
		}
		file := url.URL{Path: filepath.ToSlash(p.File)}
		region := object{"startLine": max(p.Line, 1)}
		if p.Column > 0 {
			region["startColumn"] = p.Column
		}
		at := object{"physicalLocation": object{"artifactLocation": object{"uri": file.String()}, "region": region}}
		if p.Path != "" {
			at["logicalLocations"] = []object{{"fullyQualifiedName": p.Path}}
		}
		results = append(results, object{"ruleId": rule, "level": severity(p), "message": text(p.Text), "locations": []object{at}})
	}
	driver := object{"name": "ratelimitd", "version": release(), "rules": []object{
		{"id": sarifInvalid, "shortDescription": text("Rules that are invalid")},
		{"id": sarifSuspicious, "shortDescription": text("Rules that a server loads, but that may not mean what was intended")},
	}}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}},
	})
}
