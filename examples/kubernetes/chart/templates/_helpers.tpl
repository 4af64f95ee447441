{{- define "ratelimitd.selector" -}}
app.kubernetes.io/name: ratelimitd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The metadata that all objects have, below their name. */}}
{{- define "ratelimitd.metadata" -}}
labels:
  {{- include "ratelimitd.selector" . | nindent 2 }}
{{- with .Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The same with further labels and annotations, from a list: the chart's root, the labels, and the annotations if there are any. */}}
{{- define "ratelimitd.labelled" -}}
{{- $root := first . -}}
labels:
  {{- toYaml (merge (fromYaml (include "ratelimitd.selector" $root)) (default dict (index . 1))) | nindent 2 }}
{{- with merge (dict) (default dict (index (append . dict) 2)) (default dict $root.Values.annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A value of a variable as text. Helm's numbers are floating-point, and 2000000 would become 2e+06. */}}
{{- define "ratelimitd.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end }}

{{/* The server's variables by name, those of the user instead of the chart's. A ConfigMap needs the RUNTIME_ ones; DEBUG_HOST keeps
     rules, statistics and profiles from other pods, while `kubectl port-forward` gets to them, unless debug.tls has them served. */}}
{{- define "ratelimitd.env" -}}
{{- $env := dict "REDIS_SOCKET_TYPE" "tcp" "REDIS_TYPE" .Values.redis.type "REDIS_URL" .Values.redis.url -}}
{{- $_ := set $env "RUNTIME_ROOT" "/etc/ratelimitd" -}}
{{- $_ := set $env "RUNTIME_APPDIRECTORY" "rules" -}}
{{- $_ := set $env "RUNTIME_WATCH_ROOT" false -}}
{{- $_ := set $env "RUNTIME_IGNOREDOTFILES" true -}}
{{- if .Values.debug.tls -}}{{- $_ := set $env "DEBUG_TLS" true -}}{{- else -}}{{- $_ := set $env "DEBUG_HOST" "127.0.0.1" -}}{{- end -}}
{{- $_ := set $env "USE_STATSD" false -}}
{{- $_ := set $env "USE_PROMETHEUS" true -}}
{{- if .Values.tenants -}}{{- $_ := set $env "TENANTS_FILE" "/etc/ratelimitd/tenants/tenants" -}}{{- end -}}
{{- with .Values.redis -}}
{{- if or .tls .caSecret .certSecret -}}{{- $_ := set $env "REDIS_TLS" true -}}{{- end -}}
{{- if .caSecret -}}{{- $_ := set $env "REDIS_TLS_CACERT" "/etc/ratelimitd/redis-ca/ca.crt" -}}{{- end -}}
{{- if .certSecret -}}
{{- $_ := set $env "REDIS_TLS_CLIENT_CERT" "/etc/ratelimitd/redis-cert/tls.crt" -}}
{{- $_ := set $env "REDIS_TLS_CLIENT_KEY" "/etc/ratelimitd/redis-cert/tls.key" -}}
{{- end -}}
{{- if .authSecret -}}{{- $_ := set $env "REDIS_AUTH_FILE" "/etc/ratelimitd/redis/auth" -}}{{- end -}}
{{- end -}}
{{- with .Values.grpc -}}
{{- if .certSecret -}}
{{- $_ := set $env "GRPC_SERVER_USE_TLS" true -}}
{{- $_ := set $env "GRPC_SERVER_TLS_CERT" "/etc/ratelimitd/grpc/tls.crt" -}}
{{- $_ := set $env "GRPC_SERVER_TLS_KEY" "/etc/ratelimitd/grpc/tls.key" -}}
{{- end -}}
{{- if .clientCASecret -}}{{- $_ := set $env "GRPC_CLIENT_TLS_CACERT" "/etc/ratelimitd/grpc-ca/ca.crt" -}}{{- end -}}
{{- with .clientNames -}}{{- $_ := set $env "GRPC_CLIENT_TLS_SAN" (join "," .) -}}{{- end -}}
{{- end -}}
{{- with .Values.admin -}}
{{- if not (or .enabled .tokenSecret) -}}{{- $_ := set $env "ADMIN" false -}}{{- end -}}
{{- if .tokenSecret -}}{{- $_ := set $env "ADMIN_TOKEN_FILE" "/etc/ratelimitd/admin/token" -}}{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.env -}}{{- $_ := set $env $name $value -}}{{- end -}}
{{- toYaml $env -}}
{{- end }}

{{/* How many seconds a pod may take to stop: DRAIN_DELAY, 30 s that the server takes at most, and 5 s to spare. */}}
{{- define "ratelimitd.grace" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- $begin := toDate "2006" "2026" -}}
{{- $end := mustDateModify (default "5s" (get (default dict .Values.env) "DRAIN_DELAY")) $begin -}}
{{- add 35 (sub (unixEpoch $end) (unixEpoch $begin)) -}}
{{- else -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end }}

{{/* A probe, from the chart's own and the user's, of a pair. A pod may ask in one way only. */}}
{{- define "ratelimitd.probe" -}}
{{- $probe := fromYaml (first .) -}}
{{- $given := default dict (last .) -}}
{{- if or (hasKey $given "exec") (hasKey $given "grpc") (hasKey $given "tcpSocket") -}}{{- $probe = omit $probe "httpGet" -}}{{- end -}}
{{- toYaml (mergeOverwrite $probe $given) -}}
{{- end }}

{{/* A volume of some keys of a Secret, from a list: its name, the Secret's, and the keys. */}}
{{- define "ratelimitd.secret" -}}
- name: {{ first . }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
    items:
      {{- range slice . 2 }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
