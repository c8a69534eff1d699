package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// logBytes limits the log of one container, allLogBytes the logs in total.
const (
	logBytes    = int64(8 << 20)
	allLogBytes = int64(1 << 30)
)

// ErrIncomplete means that support-bundle wrote the archive without some parts.
var ErrIncomplete = errors.New("could not be read: see not-read.txt in the archive")

func (p *plugin) bundleCommand() *cobra.Command {
	var file, node string
	command := &cobra.Command{
		Use: "support-bundle", Short: "Write what helps to find a fault into an archive, without secrets", Args: cobra.NoArgs,
		Long: "Writes Carve's objects, its Pods' logs, the Events and what doctor says into an archive. Secrets are not read. Of Pods, claims and volumes " +
			"only Carve's are taken; values of environment variables, annotations of kubectl, tokens, keys and certificates are blacked out. Look into it " +
			"before you hand it on: names of nodes, namespaces and claims are in it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.doWithin(cmd.Context(), bundleTimeout, func(ctx context.Context, client kubernetes.Interface, _ run) error {
				output, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				unread, err := p.bundle(ctx, client, output, node)
				if err != nil {
					_ = output.Close()
					_ = os.Remove(file)
					return err
				}
				if err := output.Close(); err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), "wrote", file)
				if unread > 0 {
					return fmt.Errorf("%d parts %w", unread, ErrIncomplete)
				}
				return nil
			})
		},
	}
	command.Flags().StringVar(&file, "file", "carve-support.tar.gz", "the archive; it must not exist")
	command.Flags().StringVar(&node, "node", "", "of the agents' logs, those of this node only")
	return command
}

// bundle writes the archive, and returns the number of unreadable parts, which it lists in the
// archive: it must work on a broken installation. The most useful parts come first, in case volumes
// and logs exceed the time.
func (p *plugin) bundle(ctx context.Context, client kubernetes.Interface, output io.Writer, node string) (unread int, err error) {
	a := newArchive(output, p.now())
	a.add("version.txt", []byte("kubectl carve "+p.version+"\n"), nil)
	s, err := p.read(ctx, client)
	var text []byte
	if err != nil {
		s = &snapshot{}
	} else if checks, failed := p.checks(ctx, client, s); failed != nil {
		err = failed
	} else {
		text, err = yaml.Marshal(checks)
	}
	a.add("doctor.yaml", text, err)
	reported, err := client.CoreV1().Events(p.carve).List(ctx, metav1.ListOptions{})
	a.addObject("events.yaml", reported, err)
	a.addPods(ctx, client, p.carve, node)
	a.addSnapshot(s)
	return a.unread, a.close()
}

type archive struct {
	zipped  *gzip.Writer
	entries *tar.Writer
	made    time.Time
	// failed has a line for each unreadable part. err is the first failure to write.
	failed bytes.Buffer
	unread int
	logs   int64 // bytes so far
	err    error
}

func newArchive(output io.Writer, now time.Time) *archive {
	zipped := gzip.NewWriter(output)
	return &archive{zipped: zipped, entries: tar.NewWriter(zipped), made: now.Truncate(time.Second)}
}

// add adds a file, or records err.
func (a *archive) add(name string, content []byte, err error) {
	if err != nil {
		a.unread++
		fmt.Fprintf(&a.failed, "%s: %v\n", name, err)
		return
	}
	if a.err != nil {
		return
	}
	content = redact(content)
	header := &tar.Header{Name: path.Join("carve-support", name), Mode: 0o600, Size: int64(len(content)), ModTime: a.made}
	if a.err = a.entries.WriteHeader(header); a.err == nil {
		_, a.err = a.entries.Write(content)
	}
}

func (a *archive) addObject(name string, value runtime.Object, err error) {
	var text []byte
	if err == nil {
		text, err = clean(value)
	}
	a.add(name, text, err)
}

func (a *archive) addSnapshot(s *snapshot) {
	for _, node := range s.nodes {
		a.addObject("nodes/"+node.Name+".yaml", &node, nil)
	}
	for _, pv := range s.volumes {
		a.addObject("volumes/"+pv.Name+".yaml", &pv, nil)
	}
	for _, claim := range s.bound {
		a.addObject("claims/"+claim.Namespace+"/"+claim.Name+".yaml", &claim, nil)
	}
	for _, class := range s.classes {
		a.addObject("classes/"+class.Name+".yaml", &class, nil)
	}
	for _, capacity := range s.capacities {
		a.addObject("capacities/"+capacity.Name+".yaml", &capacity, nil)
	}
}

// addPods adds Carve's Pods and their logs, of agents only those on node unless that is empty. The
// agents come last, because they are many.
func (a *archive) addPods(ctx context.Context, client kubernetes.Interface, namespace, node string) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		a.add("pods", nil, err)
		return
	}
	agent := func(pod corev1.Pod) bool { return pod.Labels[labelName] == nameAgent }
	slices.SortStableFunc(pods.Items, func(x, y corev1.Pod) int {
		switch {
		case agent(x) == agent(y):
			return 0
		case agent(x):
			return 1
		}
		return -1
	})
	for _, pod := range pods.Items {
		a.addObject("pods/"+pod.Name+".yaml", &pod, nil)
	}
	for _, pod := range pods.Items {
		if agent(pod) && node != "" && nodeOf(&pod) != node {
			continue
		}
		for _, container := range pod.Spec.Containers {
			if !started(&pod, container.Name) {
				continue
			}
			name := "logs/" + pod.Name + "/" + container.Name
			a.addLog(ctx, client, &pod, container.Name, false, name+".log")
			if restarted(&pod, container.Name) {
				a.addLog(ctx, client, &pod, container.Name, true, name+".previous.log")
			}
		}
	}
}

func (a *archive) addLog(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, container string, previous bool, name string) {
	if a.logs >= allLogBytes {
		a.add(name, nil, errors.New("the logs before it take too much; choose a node with --node"))
		return
	}
	limit := logBytes
	text, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Previous: previous, LimitBytes: &limit, Timestamps: true,
	}).DoRaw(ctx)
	a.logs += int64(len(text))
	a.add(name, text, err)
}

func (a *archive) close() error {
	a.add("not-read.txt", a.failed.Bytes(), nil)
	for _, closer := range []io.Closer{a.entries, a.zipped} {
		if err := closer.Close(); err != nil && a.err == nil {
			a.err = err
		}
	}
	if a.err != nil {
		return fmt.Errorf("write the archive: %w", a.err)
	}
	return nil
}

// started reports whether a container has run, and so may have a log.
func started(pod *corev1.Pod, container string) bool {
	waits := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == container && s.State.Waiting != nil && s.LastTerminationState.Terminated == nil
	})
	return pod.Spec.NodeName != "" && !waits
}

func restarted(pod *corev1.Pod, container string) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status.RestartCount > 0
		}
	}
	return false
}

// clean returns an object as YAML, without useless or possibly secret parts: values of environment
// variables, kubectl's copy of the object, and managed fields.
func clean(object runtime.Object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	for _, path := range [][]string{{"metadata", "managedFields"}, {"metadata", "annotations", corev1.LastAppliedConfigAnnotation}} {
		unstructured.RemoveNestedField(fields, path...)
	}
	for _, kind := range []string{"containers", "initContainers"} {
		containers, found, err := unstructured.NestedSlice(fields, "spec", kind)
		if err != nil || !found {
			continue
		}
		for _, container := range containers {
			list, _, _ := unstructured.NestedSlice(container.(map[string]any), "env")
			for _, variable := range list {
				if fields := variable.(map[string]any); fields["value"] != nil {
					fields["value"] = redacted
				}
			}
			if list != nil {
				container.(map[string]any)["env"] = list
			}
		}
		if err := unstructured.SetNestedSlice(fields, containers, "spec", kind); err != nil {
			return nil, err
		}
	}
	return yaml.Marshal(fields)
}
