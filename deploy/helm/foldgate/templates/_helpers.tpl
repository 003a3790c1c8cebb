{{- define "foldgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "foldgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "foldgate.redisSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end }}

{{- define "foldgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "foldgate.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "foldgate.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The configuration: the user's, and what the chart must set. */ -}}
{{- define "foldgate.config" -}}
{{- $c := deepCopy .Values.config }}
{{- if not (or (get $c "principals") (get $c "auth")) }}{{ fail "config needs principals or auth: other machines reach foldgate. See docs/security.md of foldgate" }}{{ end }}
{{- if and .Values.redis.existing.secret .Values.redis.trial.enabled }}{{ fail "redis: use either existing or trial" }}{{ end }}
{{- $redis := include "foldgate.redis" . }}
{{- if and (gt (int .Values.replicas) 1) (not $redis) }}{{ fail "replicas: more than one needs redis.existing, or redis.trial.enabled for a trial" }}{{ end }}
{{- $_ := set $c "listen" (printf "%s:8787" (ternary "[::]" "0.0.0.0" .Values.ipv6)) }}
{{- $_ := set $c "state_dir" "/var/lib/foldgate/state" }}
{{- if $redis }}
{{- $_ := set $c "store" (mergeOverwrite (get $c "store" | default dict) (dict "url" "${FOLDGATE_STORE_URL}")) }}
{{- $_ := set $c "replicas" (dict "listen" (printf "%s:8788" (ternary "[${POD_IP}]" "${POD_IP}" .Values.ipv6)) "key" "${FOLDGATE_REPLICAS_KEY}" "drain_seconds" .Values.drainSeconds) }}
{{- end }}
{{- if .Values.tls.secret }}{{ $_ := set $c "tls" (dict "cert" "/etc/foldgate-tls/tls.crt" "key" "/etc/foldgate-tls/tls.key") }}{{ end }}
{{- toYaml $c }}
{{- end }}

{{- define "foldgate.redis" -}}
{{- if or .Values.redis.existing.secret .Values.redis.trial.enabled }}yes{{ end }}
{{- end }}

{{- /* Probes name the first of allowed_hosts: foldgate answers no other name if there are any. */ -}}
{{- define "foldgate.probe" -}}
port: http
scheme: {{ ternary "HTTPS" "HTTP" (not (empty .Values.tls.secret)) }}
{{- with get .Values.config "allowed_hosts" }}
httpHeaders: [{name: Host, value: {{ first . | quote }}}]
{{- end }}
{{- end }}
