{{/* The image with its tag, or its digest. */}}
{{- define "carve.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "carve.labels" -}}
app.kubernetes.io/part-of: carve
{{- end -}}

{{/*
The objects of a file that kustomize reads, too, as they are there, but in the release's
namespace and with the labels. Arguments: root, path below files/; further labels and another
namespace, if any.
*/}}
{{- define "carve.file" -}}
{{- $root := .root -}}
{{- $clusterWide := list "CSIDriver" "ClusterRole" "ClusterRoleBinding" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" "SecurityContextConstraints" -}}
{{- $text := $root.Files.Get (printf "files/%s" .path) | required (printf "the chart lacks files/%s" .path) -}}
{{- range regexSplit "(?m)^---$" ($text | replace "carve-system" $root.Release.Namespace) -1 }}
{{- $object := fromYaml . -}}
{{- if hasKey $object "Error" }}{{ fail (printf "files/%s: %s" $.path $object.Error) }}{{ end -}}
{{- if not (has $object.kind $clusterWide) }}{{ $_ := set $object.metadata "namespace" ($.namespace | default $root.Release.Namespace) }}{{ end -}}
{{- $_ := set $object.metadata "labels" (merge (include "carve.labels" $root | fromYaml) ($.labels | default dict) ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}
