// Package kubectl is the plugin `kubectl carve`. It reads the API server with the
// credentials of the user, who needs the rights in deploy/kubectl/rbac.yaml. It reads no Secrets. It changes something
// only by `adopt`, `orphans adopt` and `orphans remove`, with a flag that says so; on nodes it
// runs carve-lvmd.
//
// A command collects what it needs into a snapshot, once, and prints what it makes of it: a
// table for people, or JSON or YAML, whose fields stay as they are within a major version.
package kubectl
