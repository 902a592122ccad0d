//! Common tables that a question names more than once. The engine would compute each anew, and read the data set for it.

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast;

/// A question in the order in which it is answered.
#[derive(Debug)]
pub struct Parts {
    /// Names of shared tables and the questions that give their rows; one may name those before it.
    pub shared: Vec<(String, String)>,
    /// The question without them.
    pub rest: String,
}

/// Takes a question apart.
///
/// # Errors
/// If it is not one question in SQL.
pub fn parts(question: &str) -> Result<Parts> {
    let mut query = parsed(question)?;
    let names = names(&query);
    let mut shared = Vec::new();
    if let Some(mut with) = query.with.take() {
        for table in std::mem::take(&mut with.cte_tables) {
            let name = table.alias.name.value.clone();
            if names.iter().filter(|other| **other == name).count() > 1 {
                shared.push((name, with_tables(&with, &table.query)));
            } else {
                with.cte_tables.push(table);
            }
        }
        let rest = with_tables(&with, &query);
        return Ok(Parts { shared, rest });
    }
    let rest = query.to_string();
    Ok(Parts { shared, rest })
}

fn parsed(question: &str) -> Result<ast::Query> {
    let mut statements = DFParser::parse_sql(question)?;
    if let (Some(Statement::Statement(statement)), true) =
        (statements.pop_front(), statements.is_empty())
        && let ast::Statement::Query(query) = *statement
    {
        return Ok(*query);
    }
    let message = String::from("it is not one question");
    Err(DataFusionError::Plan(message))
}

/// Every table that is named, as often as it is.
fn names(query: &ast::Query) -> Vec<String> {
    let mut names = Vec::new();
    let _ = ast::visit_relations(query, |name| {
        names.push(name.to_string());
        ControlFlow::<()>::Continue(())
    });
    names
}

fn with_tables(with: &ast::With, query: &ast::Query) -> String {
    if with.cte_tables.is_empty() {
        return query.to_string();
    }
    format!("{with} {query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_twice_is_computed_first() {
        for (question, shared, rest) in [
            ("SELECT a FROM t;", &[][..], "SELECT a FROM t"),
            (
                "WITH x AS (SELECT a FROM t) SELECT a FROM x",
                &[],
                "WITH x AS (SELECT a FROM t) SELECT a FROM x",
            ),
            (
                "WITH x AS (SELECT a FROM t), y AS (SELECT a FROM x), z AS (SELECT max(a) AS a FROM y)
                 SELECT a FROM y JOIN z USING (a)",
                &[("y", "WITH x AS (SELECT a FROM t) SELECT a FROM x")],
                "WITH x AS (SELECT a FROM t), z AS (SELECT max(a) AS a FROM y) SELECT a FROM y JOIN z USING(a)",
            ),
        ] {
            let parts = parts(question).expect("a question");
            let named = parts.shared.iter();
            let named: Vec<_> = named.map(|(a, b)| (a.as_str(), b.as_str())).collect();
            assert_eq!(named, shared);
            assert_eq!(parts.rest, rest);
        }
        for wrong in ["", "SELECT 1; SELECT 2", "DROP TABLE disks", "SELECT ("] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }
}
