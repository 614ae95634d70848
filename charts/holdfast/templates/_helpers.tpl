{{/* Name of everything that the operator has. */}}
{{- define "holdfast.operator" -}}
{{- $base := ternary .Release.Name (printf "%s-holdfast" .Release.Name) (contains "holdfast" .Release.Name) -}}
{{- printf "%s-operator" ($base | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "holdfast.operator" .) -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* Nodes belong to no namespace: a Role gives no right to them. */}}
{{- define "holdfast.nodeNotices" -}}
{{- ternary "on" "off" (and .Values.nodeNotices (eq .Values.watchNamespace "")) -}}
{{- end -}}
{{- define "holdfast.masterPod" -}}
{{- with .Values.master -}}
{{- dict
  "annotations" .podAnnotations
  "labels" .podLabels
  "imagePullSecrets" (default $.Values.imagePullSecrets .imagePullSecrets)
  "nodeSelector" .nodeSelector
  "tolerations" .tolerations
  "priorityClassName" .priorityClassName
  "resources" .resources
| toJson -}}
{{- end -}}
{{- end -}}

{{/* Whether an object of Prometheus' operator is made: auto is yes where its CRDs are there. */}}
{{- define "holdfast.monitored" -}}
{{- $wanted := index . 0 | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (index . 1)) }}yes{{ end -}}
{{- end -}}
