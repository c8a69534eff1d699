// Package kubectl is the plugin `kubectl carve`. It reads the API server with the user's
// credentials, which need the rights in deploy/kubectl/rbac.yaml. It reads no Secrets. Only
// `adopt`, `orphans adopt` and `orphans remove` change anything, and only with an explicit flag. On
// nodes it runs carve-lvmd.
//
// A command reads a snapshot once and prints a result: a table for people, or JSON or YAML, whose
// fields are stable within a major version.
package kubectl
