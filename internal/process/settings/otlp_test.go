package settings

import (
	"strings"
	"testing"
)

func TestOTLP(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ []string
		wrong   string // the variable in the error; empty if valid
	}{
		{nil, ""},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://user:sesame@collector/a/b", "OTEL_EXPORTER_OTLP_HEADERS=a=sesame, b=%20c,c=", "OTEL_EXPORTER_OTLP_TIMEOUT=0"}, ""},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=sesame"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317"}, ""},
		{[]string{"TRACING_EXPORTER_PROTOCOL=GRPC", "OTEL_EXPORTER_OTLP_ENDPOINT=dns:///collector:4317"}, ""},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=10.0.0.1:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:1#sesame@collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://sesame?@collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=http://user:sesame@collector:4317"}, ""},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=unix:///run/collector@1.sock"}, ""},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=user:sesame@collector:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{[]string{"TRACING_EXPORTER_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=dns:///sesame@collector:4317"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=sesame"}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=b,se same=c"}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=sesame%"}, "OTEL_EXPORTER_OTLP_TRACES_HEADERS"},
		{[]string{"OTEL_EXPORTER_OTLP_TIMEOUT=1s"}, "OTEL_EXPORTER_OTLP_TIMEOUT"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=-1"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"},
	} {
		_, _, problems := parse(t, append([]string{"TRACING_ENABLED=true"}, tt.environ...)...)
		switch {
		case tt.wrong == "" && problems != nil, tt.wrong != "" && len(problems) != 1:
			t.Errorf("%q: %q", tt.environ, problems)
		case tt.wrong != "" && (!strings.HasPrefix(problems[0], tt.wrong+": must be ") || strings.Contains(problems[0], "sesame")):
			t.Errorf("%q: %s", tt.environ, problems[0])
		}
		if _, _, problems := parse(t, tt.environ...); problems != nil {
			t.Errorf("%q without tracing: %q", tt.environ, problems)
		}
	}
}
