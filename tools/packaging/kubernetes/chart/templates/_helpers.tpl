{{- /* "kvtierd" for a release of that name, so that several releases fit into one namespace. */ -}}
{{- define "kvtierd.name" -}}
{{- if contains "kvtierd" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-kvtierd{{ end -}}
{{- end }}

{{- define "kvtierd.selector" -}}
app.kubernetes.io/name: kvtierd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The alert rules ask for the job "kvtier", which is what part-of says. */ -}}
{{- define "kvtierd.labels" -}}
{{ include "kvtierd.selector" . }}
app.kubernetes.io/part-of: kvtier
{{- end }}

{{- /* What the chart itself decides, whatever the values say. */ -}}
{{- define "kvtierd.own" -}}
server:
  socket: /run/kvtier/kvtier.sock
  admin_socket: /run/kvtier/admin.sock
{{- if .Values.metrics.enabled }}
  listen_beyond_loopback: true
metrics:
  listen: "0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{- if not .Values.config.disk.directories }}
disk:
  directory: /var/lib/kvtier
{{- end }}
{{- end }}
