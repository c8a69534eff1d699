package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// logBytes bounds the log of one container.
const logBytes = int64(8 << 20)

func (p *plugin) bundleCommand() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use: "support-bundle", Short: "Write what helps to find a fault into an archive, without secrets", Args: cobra.NoArgs,
		Long: "Writes Carve's objects, its Pods' logs, the Events and what doctor says into an archive. Secrets are not read. Of Pods, claims and volumes " +
			"only Carve's are taken; values of environment variables, annotations of kubectl, tokens, keys and certificates are blacked out. Look into it " +
			"before you hand it on: names of nodes, namespaces and claims are in it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, _ run) error {
				output, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				if err := p.bundle(ctx, client, output); err != nil {
					_ = output.Close()
					_ = os.Remove(file)
					return err
				}
				if err := output.Close(); err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "wrote", file)
				return err
			})
		},
	}
	command.Flags().StringVar(&file, "file", "carve-support.tar.gz", "the archive; it must not exist")
	return command
}

// bundle writes the archive. What cannot be read is noted in it, and is no error: an
// installation that has a fault is what it is for.
func (p *plugin) bundle(ctx context.Context, client kubernetes.Interface, output io.Writer) error {
	zipped := gzip.NewWriter(output)
	archive := tar.NewWriter(zipped)
	var failed bytes.Buffer
	var writeErr error
	add := func(name string, content []byte, err error) {
		if err != nil {
			fmt.Fprintf(&failed, "%s: %v\n", name, err)
			return
		}
		content = redact(content)
		header := &tar.Header{Name: path.Join("carve-support", name), Mode: 0o600, Size: int64(len(content)), ModTime: p.now().Truncate(time.Second)}
		if writeErr == nil {
			if writeErr = archive.WriteHeader(header); writeErr == nil {
				_, writeErr = archive.Write(content)
			}
		}
	}
	object := func(name string, value runtime.Object, err error) {
		var text []byte
		if err == nil {
			text, err = clean(value)
		}
		add(name, text, err)
	}
	s, err := p.read(ctx, client)
	if err != nil {
		fmt.Fprintln(&failed, err)
		s = &snapshot{}
	}
	for _, node := range s.nodes {
		object("nodes/"+node.Name+".yaml", &node, nil)
	}
	for _, pv := range s.volumes {
		object("volumes/"+pv.Name+".yaml", &pv, nil)
		if ref := pv.Spec.ClaimRef; ref != nil {
			claim, err := client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			object("claims/"+ref.Namespace+"/"+ref.Name+".yaml", claim, err)
		}
	}
	for _, class := range s.classes {
		object("classes/"+class.Name+".yaml", &class, nil)
	}
	for _, capacity := range s.capacities {
		object("capacities/"+capacity.Name+".yaml", &capacity, nil)
	}
	pods, err := client.CoreV1().Pods(p.carve).List(ctx, metav1.ListOptions{})
	if err != nil {
		add("pods", nil, err)
		pods = &corev1.PodList{}
	}
	for _, pod := range pods.Items {
		object("pods/"+pod.Name+".yaml", &pod, nil)
		for _, container := range pod.Spec.Containers {
			for _, previous := range []bool{false, true} {
				name := "logs/" + pod.Name + "/" + container.Name + ".log"
				if previous {
					if !restarted(&pod, container.Name) {
						continue
					}
					name = "logs/" + pod.Name + "/" + container.Name + ".previous.log"
				}
				limit := logBytes
				text, err := client.CoreV1().Pods(p.carve).GetLogs(pod.Name, &corev1.PodLogOptions{
					Container: container.Name, Previous: previous, LimitBytes: &limit, Timestamps: true,
				}).DoRaw(ctx)
				add(name, text, err)
			}
		}
	}
	reported, err := client.CoreV1().Events(p.carve).List(ctx, metav1.ListOptions{})
	object("events.yaml", reported, err)
	checks, err := p.doctor(ctx, client)
	var text []byte
	if err == nil {
		text, err = yaml.Marshal(checks)
	}
	add("doctor.yaml", text, err)
	add("version.txt", []byte("kubectl carve "+p.version+"\n"), nil)
	add("not-read.txt", failed.Bytes(), nil)
	for _, closer := range []io.Closer{archive, zipped} {
		if err := closer.Close(); err != nil && writeErr == nil {
			writeErr = err
		}
	}
	if writeErr != nil {
		return fmt.Errorf("write the archive: %w", writeErr)
	}
	return nil
}

func restarted(pod *corev1.Pod, container string) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status.RestartCount > 0
		}
	}
	return false
}

// clean returns an object as YAML, without what may be secret and helps little: values of
// environment variables, what kubectl last applied, and who manages which field.
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
