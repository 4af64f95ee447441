{{- define "ratelimitd.selector" -}}
app.kubernetes.io/name: ratelimitd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
