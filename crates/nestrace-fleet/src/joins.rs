//! Joins that use temporary files.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};

/// The engine's rules, and before them ours: they sort what its joins ask for.
pub fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    rules.insert(0, Arc::new(MergeJoins));
    rules
}

/// Makes every join of equal keys one of two sorted sides. The engine has them only where several threads share a side, and
/// else holds one side as a whole.
#[derive(Debug)]
struct MergeJoins;

impl PhysicalOptimizerRule for MergeJoins {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|plan| {
            let join = plan.downcast_ref::<HashJoinExec>();
            // With a further condition the engine's sorted join does not take rows without a partner for null.
            let join = join.filter(|join| join.filter().is_none() && !join.contains_projection());
            let Some(join) = join else {
                return Ok(Transformed::no(plan));
            };
            let merged = SortMergeJoinExec::try_new(
                Arc::clone(join.left()),
                Arc::clone(join.right()),
                join.on().to_vec(),
                None,
                *join.join_type(),
                vec![SortOptions::default(); join.on().len()],
                join.null_equality(),
            )?;
            Ok(Transformed::yes(Arc::new(merged)))
        })?;
        Ok(plan.data)
    }

    fn name(&self) -> &'static str {
        "merge_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// The plan of a question, and its answer.
    fn asked(question: &str, has_rule: bool) -> (String, String) {
        let mut state = SessionStateBuilder::new()
            .with_config(SessionConfig::new().with_target_partitions(1))
            .with_default_features();
        if has_rule {
            state = state.with_physical_optimizer_rules(rules());
        }
        let context = SessionContext::new_with_state(state.build());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let rows = context.sql(question).await.expect("a question");
            let plan = rows.clone().create_physical_plan().await.expect("a plan");
            let answer = rows.collect().await.expect("an answer");
            let answer = pretty_format_batches(&answer).expect("a table");
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            (plan, answer.to_string())
        })
    }

    #[test]
    fn joins_of_sorted_sides_answer_alike() {
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
            let question = format!(
                "WITH a AS (SELECT * FROM (VALUES ('y', 1), ('x', 2), (NULL, 3), ('x', 4)) AS a (k, v)),
                      b AS (SELECT * FROM (VALUES ('x', 10), ('z', 20), (NULL, 30), ('y', 40)) AS b (k, w))
                 SELECT a.k, v, w FROM a {join} b ON a.k = b.k ORDER BY v, w"
            );
            let (hashed, expected) = asked(&question, false);
            let (merged, answer) = asked(&question, true);
            assert!(hashed.contains("HashJoinExec"), "{hashed}");
            assert!(!merged.contains("HashJoinExec"), "{merged}");
            assert!(merged.contains("SortMergeJoin"), "{merged}");
            assert_eq!(answer, expected, "{join}");
        }
    }
}
