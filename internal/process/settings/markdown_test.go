package settings

import (
	"fmt"
	"strings"
)

// Markdown returns the table of variables in docs/settings.md.
func Markdown() string {
	var b strings.Builder
	for _, s := range sections(new(Settings)) {
		fmt.Fprintf(&b, "## %s\n\n| Variable | Default | Meaning |\n| --- | --- | --- |\n", s.title)
		for _, v := range s.rows {
			def := "–"
			if v.def != "" {
				def = "`" + v.def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s%s |\n", v.name, def, v.text, v.remark())
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// remark returns the note on a variable without effect.
func (v variable) remark() string {
	if _, inert := v.to.(state); inert {
		return " (accepted, no effect)"
	}
	return ""
}
