-- The tables of single requests, for DuckDB: what slowest.sql asks for beside tables.sql.
CREATE OR REPLACE TEMP VIEW chains AS
SELECT * FROM read_parquet('chains/host=*/guest=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'guest': VARCHAR, 'date': VARCHAR});
CREATE OR REPLACE TEMP VIEW spans AS
SELECT * FROM read_parquet('spans/host=*/guest=*/date=*/*.parquet', hive_partitioning = true, union_by_name = true,
                           hive_types = {'host': VARCHAR, 'guest': VARCHAR, 'date': VARCHAR});
