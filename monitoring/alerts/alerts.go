// Package alerts makes of Carve's plain alert rules the object that the Prometheus operator
// reads, so that there is one source of both. Its tests run the rules as promtool does.
package alerts

import (
	"bytes"
	"fmt"
	"strings"
)

// Files below the source tree's root.
const (
	// Plain is for Prometheus, and is what people edit.
	Plain = "deploy/monitoring/alerts.yaml"
	// Object is for the Prometheus operator, and is made of Plain.
	Object = "deploy/components/alerts/rules.yaml"
)

const header = `# Made of deploy/monitoring/alerts.yaml by make generate. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: carve
  namespace: carve-system
spec:
`

// ToObject returns the file Object for what Plain holds.
func ToObject(plain []byte) ([]byte, error) {
	begin := bytes.Index(plain, []byte("\ngroups:\n"))
	if begin < 0 {
		return nil, fmt.Errorf("%s has no groups", Plain)
	}
	var out strings.Builder
	out.WriteString(header)
	for line := range strings.Lines(string(plain[begin+1:])) {
		out.WriteString("  " + line)
	}
	return []byte(out.String()), nil
}
