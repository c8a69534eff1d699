package kubectl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/pkg/kubectl/adoption"
)

// Claimed are the objects that give an orphan to a claim.
type Claimed struct {
	PersistentVolume *corev1.PersistentVolume      `json:"persistentVolume"`
	Claim            *corev1.PersistentVolumeClaim `json:"claim"`
	// Made is whether they were made, and not only shown.
	Made bool `json:"made"`
}

func (p *plugin) claimCommand() *cobra.Command {
	var name, class string
	var yes, foreign bool
	command := &cobra.Command{
		Use: "adopt ID", Short: "Give an orphan, with all it holds, to a new claim", Args: cobra.ExactArgs(1),
		Long: "Makes a claim and the PersistentVolume that gives it the orphan. The PersistentVolume has the policy Retain.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				o, err := p.orphan(ctx, client, run, args[0], foreign)
				if err != nil {
					return err
				}
				s, err := p.read(ctx, client)
				if err != nil {
					return err
				}
				chosen, err := s.chooseClass(class)
				if err != nil {
					return err
				}
				result := claimed(o, p.namespace, name, chosen.Name)
				if yes {
					if err := result.make(ctx, client); err != nil {
						return err
					}
				}
				var rows [][]string
				for _, object := range []any{result.PersistentVolume, result.Claim} {
					text, err := yaml.Marshal(object)
					if err != nil {
						return fmt.Errorf("print the objects: %w", err)
					}
					rows = append(rows, []string{"---\n" + string(text)})
				}
				last := "# --yes makes them"
				if result.Made {
					last = "# made"
				}
				return p.print(cmd.OutOrStdout(), result, append(rows, []string{last}))
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&name, "claim", "", "name of the new claim")
	flags.StringVar(&class, "storage-class", "", "StorageClass of Carve that the claim has; empty: the only one")
	flags.BoolVar(&yes, "yes", false, "make the objects; without, only show them")
	flags.BoolVar(&foreign, "foreign", false, "take it even if this cluster did not make it")
	_ = command.MarkFlagRequired("claim")
	return command
}

// claimed returns the objects that give an orphan to a claim.
func claimed(o Orphan, namespace, name, class string) *Claimed {
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(o.Bytes, resource.BinarySI)}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	mode := corev1.PersistentVolumeFilesystem
	if o.FSType == "" {
		mode = corev1.PersistentVolumeBlock
	}
	saved := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "carve-" + o.ID},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size, StorageClassName: class, VolumeMode: &mode,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: name},
		},
	}
	pv := adoption.PersistentVolume(saved, o.volume, o.Node)
	pv.TypeMeta = saved.TypeMeta
	return &Claimed{
		PersistentVolume: pv,
		Claim: &corev1.PersistentVolumeClaim{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, StorageClassName: &class, VolumeName: pv.Name, VolumeMode: &mode,
				Resources: corev1.VolumeResourceRequirements{Requests: size},
			},
		},
	}
}

// make makes the objects: the claim first, so that its name is refused before anything is made.
func (c *Claimed) make(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.CoreV1().PersistentVolumeClaims(c.Claim.Namespace).Create(ctx, c.Claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the claim: %w", err)
	}
	if _, err := client.CoreV1().PersistentVolumes().Create(ctx, c.PersistentVolume, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the PersistentVolume: %w", err)
	}
	c.Made = true
	return nil
}
